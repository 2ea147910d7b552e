use std::ptr::null;

use super::*;

const WORDS: &[u8] = br#"{"version":"1.0","added_tokens":[
    {"id":4,"content":"<x>","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true}],
    "truncation":{"direction":"Right","max_length":1,"strategy":"LongestFirst","stride":0},
    "pre_tokenizer":{"type":"Whitespace"},
    "model":{"type":"WordLevel","vocab":{"a":0,"b":1,"u":2,"a\u0000b":3},"unk_token":"u"}}"#;

unsafe fn from(json: &[u8]) -> Result<*mut c_void, String> {
    let mut error = null_mut();
    let options = tokenizers_options {
        encode_special_tokens: true,
    };
    let made = tokenizers_from_bytes(json.as_ptr(), json.len() as u32, &options, &mut error);
    if !made.is_null() {
        return Ok(made);
    }
    let message = CStr::from_ptr(error).to_string_lossy().into_owned();
    tokenizers_free_string(error);
    Err(message)
}

unsafe fn ids_of(tokenizer: *mut c_void, message: &CStr, all: bool) -> Option<Vec<u32>> {
    let options = tokenizers_encode_options {
        add_special_tokens: false,
        return_type_ids: all,
        return_tokens: all,
        return_special_tokens_mask: all,
        return_attention_mask: all,
        return_offsets: all,
    };
    let buffer = tokenizers_encode(tokenizer, message.as_ptr(), &options);
    if buffer.ids.is_null() {
        return None;
    }
    let ids = std::slice::from_raw_parts(buffer.ids, buffer.len).to_vec();
    assert_eq!(buffer.tokens.is_null(), !all || ids.is_empty());
    assert_eq!(buffer.offsets.is_null(), !all || ids.is_empty());
    tokenizers_free_buffer(buffer);
    Some(ids)
}

#[test]
fn truncation_of_the_file_is_dropped() {
    unsafe {
        let tokenizer = from(WORDS).unwrap();
        assert_eq!(ids_of(tokenizer, c"a b a", false), Some(vec![0, 1, 0]));
        assert_eq!(ids_of(tokenizer, c"a b a", true), Some(vec![0, 1, 0]));
        assert_eq!(tokenizers_vocab_size(tokenizer), 5);
        tokenizers_free_tokenizer(tokenizer);
    }
}

#[test]
fn nul_travels_as_c0_80() {
    unsafe {
        let tokenizer = from(WORDS).unwrap();
        let decoded = tokenizers_decode(tokenizer, [3u32].as_ptr(), 1, false);
        assert_eq!(CStr::from_ptr(decoded).to_bytes(), b"a\xC0\x80b");
        tokenizers_free_string(decoded);
        assert_eq!(ids_of(tokenizer, c"\xC0\x80", true), Some(vec![2])); // unknown, not the end
        assert_eq!(ids_of(tokenizer, c"", true), Some(vec![]));
        tokenizers_free_tokenizer(tokenizer);
    }
    assert_eq!(restore_nul(b"\xC0\x80a\xC0\x80\xC0"), b"\0a\0\xC0");
    assert_eq!(spell_nul(b"\0a\0".to_vec()), b"\xC0\x80a\xC0\x80");
}

#[test]
fn other_invalid_text_fails() {
    unsafe {
        let tokenizer = from(WORDS).unwrap();
        for bad in [c"a\xC0", c"a\xC0\x80\xFF", c"\x80", c"\xED\xA0\x80"] {
            assert_eq!(ids_of(tokenizer, bad, false), None, "{bad:?}");
        }
        tokenizers_free_tokenizer(tokenizer);
    }
}

#[test]
fn null_pointers_fail() {
    unsafe {
        assert_eq!(ids_of(null_mut(), c"a", false), None);
        assert!(tokenizers_decode(null_mut(), null(), 0, false).is_null());
        assert_eq!(tokenizers_vocab_size(null_mut()), 0);
        tokenizers_free_tokenizer(null_mut());
        tokenizers_free_string(null_mut());
        assert!(tokenizers_from_file(null(), null_mut()).is_null());
        assert!(tokenizers_from_tiktoken(null(), null(), null(), null_mut()).is_null());
    }
}

#[test]
fn a_panic_becomes_an_error() {
    let caught = guard::<()>(|| panic!("at {}", 7));
    assert_eq!(caught.unwrap_err(), "panic in the tokenizers crate: at 7");
    // The prefix is longer than the second half of the merge, which the crate slices.
    let json = br####"{"version":"1.0","added_tokens":[],"model":{"type":"BPE",
        "continuing_subword_prefix":"###","vocab":{"a":0,"b":1,"ab":2},"merges":["a b"]}}"####;
    let message = unsafe { from(json) }.unwrap_err();
    assert!(message.contains("panic"), "{message}");
}

/// A tokenizer of pieces that begin with U+2581, with a step before Metaspace.
const PIECES: &[u8] = br#"{"version":"1.0","added_tokens":[
    {"id":4,"content":"<t>","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":false}],
    "pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Digits","individual_digits":true},
    {"type":"Metaspace","replacement":"\u2581","prepend_scheme":"first","split":true}]},
    "model":{"type":"WordLevel","vocab":{"\u2581a":0,"a":1,"u":2,"\u2581":3},"unk_token":"u"}}"#;

unsafe fn direct_ids(tokenizer: *mut c_void, text: &[u8], inner: bool) -> Result<Vec<u32>, String> {
    let mut room = [9; 8];
    let got = direct::hfshim_encode(
        tokenizer,
        text.as_ptr(),
        text.len(),
        inner,
        room.as_mut_ptr(),
        room.len(),
    );
    if got.error.is_null() {
        return Ok(room[..got.len].to_vec());
    }
    let message = CStr::from_ptr(got.error).to_string_lossy().into_owned();
    tokenizers_free_string(got.error);
    Err(message)
}

#[test]
fn the_short_way_knows_the_start_of_a_sequence() {
    unsafe {
        let tokenizer = from(PIECES).unwrap();
        assert_eq!(direct_ids(tokenizer, b"a a", false), Ok(vec![0, 0]));
        assert_eq!(direct_ids(tokenizer, b"a a", true), Ok(vec![1, 0]));
        assert_eq!(direct_ids(tokenizer, b" a", true), Ok(vec![0]));
        // The text begins with a token, so its first word is not the first of the sequence.
        assert_eq!(direct_ids(tokenizer, b"<t>a", false), Ok(vec![4, 1]));
        assert_eq!(direct_ids(tokenizer, b"", false), Ok(vec![]));
        tokenizers_free_tokenizer(tokenizer);
    }
}

#[test]
fn the_short_way_takes_nul_and_refuses_what_is_not_text() {
    unsafe {
        let tokenizer = from(WORDS).unwrap();
        assert_eq!(direct_ids(tokenizer, b"a \0 b", true), Ok(vec![0, 2, 1]));
        assert!(direct_ids(tokenizer, b"a\xC0\x80", true)
            .unwrap_err()
            .contains("UTF-8"));
        assert!(direct_ids(null_mut(), b"a", true)
            .unwrap_err()
            .contains("null"));
        let got =
            direct::hfshim_encode(tokenizer, b"a b".as_ptr(), 3, true, null_mut(), 0);
        assert_eq!((got.len, got.error), (2, null_mut()));
        tokenizers_free_tokenizer(tokenizer);
    }
}

#[test]
fn the_vocabulary_is_counted_as_the_crate_does() {
    for json in [WORDS, PIECES] {
        let tokenizer = parse_slice(json).unwrap();
        let want = tokenizer.get_vocab_size(true);
        assert_eq!(Engine::new(tokenizer).vocab_size(), want);
    }
}
