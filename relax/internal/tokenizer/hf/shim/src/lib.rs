//! The native half of the engine's Hugging Face tokenizer.
//!
//! It exports the C symbols that the Go package `github.com/daulet/tokenizers` v1.27.0 links
//! against, over the `tokenizers` crate, so that the Go package is used unchanged while
//! everything native is built from crates.io alone, and one symbol more, the short way to
//! encode of [`direct`]. What may enter: a
//! `tokenizer.json`, text, ids. What it never does: network, files other than the one named,
//! logging, or unwinding into C. A panic inside `tokenizers` becomes an error result.
//!
//! # NUL bytes
//!
//! The Go package hands text over as a C string, which ends at the first NUL. Text may hold
//! NUL, so both sides speak modified UTF-8: a NUL travels as the two bytes `C0 80`. Byte `C0`
//! occurs nowhere in valid UTF-8, so the spelling is unambiguous, and text without a NUL is
//! unchanged. [`tokenizers_encode`] turns `C0 80` into NUL before it encodes;
//! [`tokenizers_decode`] writes NUL as `C0 80`, and the Go caller turns it back. Any other
//! invalid UTF-8 is an error, never replaced.
//!
//! # Truncation and padding
//!
//! Both settings of a `tokenizer.json` are dropped on load, as `transformers` does unless a
//! call asks for them: a rollout must not lose or gain tokens because of a training default.
#![allow(non_camel_case_types)]

use std::ffi::{c_char, c_void, CStr, CString};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::ptr::null_mut;

use tokenizers::{Encoding, Tokenizer, TruncationDirection, TruncationParams, TruncationStrategy};

pub mod direct;
mod engine;

use engine::Engine;

/// How a NUL byte is written inside a C string.
const NUL_SPELLING: [u8; 2] = [0xC0, 0x80];

/// `struct tokenizers_options` of tokenizers.h.
#[repr(C)]
pub struct tokenizers_options {
    encode_special_tokens: bool,
}

/// `struct tokenizers_encode_options` of tokenizers.h.
#[repr(C)]
pub struct tokenizers_encode_options {
    add_special_tokens: bool,
    return_type_ids: bool,
    return_tokens: bool,
    return_special_tokens_mask: bool,
    return_attention_mask: bool,
    return_offsets: bool,
}

/// `struct tokenizers_buffer` of tokenizers.h. Every array has `len` elements (offsets: twice
/// as many) and is null when it was not asked for. `len == 0` with `ids == null` is a failure.
#[repr(C)]
pub struct tokenizers_buffer {
    ids: *mut u32,
    type_ids: *mut u32,
    special_tokens_mask: *mut u32,
    attention_mask: *mut u32,
    tokens: *mut *mut c_char,
    offsets: *mut usize,
    len: usize,
}

impl tokenizers_buffer {
    const FAILED: Self = Self {
        ids: null_mut(),
        type_ids: null_mut(),
        special_tokens_mask: null_mut(),
        attention_mask: null_mut(),
        tokens: null_mut(),
        offsets: null_mut(),
        len: 0,
    };

    /// The result of text that has no tokens. The Go side tells it from a failure by a
    /// non-null `ids` and does not free it, so `ids` points at something that lives forever.
    /// A dangling small number would not do: Go's stack copier rejects it.
    fn empty() -> Self {
        static NOTHING: u32 = 0;
        Self {
            ids: (&raw const NOTHING).cast_mut(),
            ..Self::FAILED
        }
    }
}

/// Answers the link-time version check of the Go file.
#[no_mangle]
pub extern "C" fn tokenizers_version_1_26_0() {}

/// Names this library.
#[no_mangle]
pub extern "C" fn tokenizers_version() -> *const c_char {
    concat!("relax-", env!("CARGO_PKG_VERSION"), "\0")
        .as_ptr()
        .cast()
}

/// Builds a tokenizer from the `len` bytes of a `tokenizer.json`. On failure it returns null
/// and stores a message in `*error`, to be freed with [`tokenizers_free_string`].
///
/// # Safety
/// `config` must point to `len` bytes, `options` and `error` must be null or valid.
#[no_mangle]
pub unsafe extern "C" fn tokenizers_from_bytes(
    config: *const u8,
    len: u32,
    options: *const tokenizers_options,
    error: *mut *mut c_char,
) -> *mut c_void {
    load(error, || {
        let mut tokenizer = parse(config, len)?;
        let encode_special = options.as_ref().is_some_and(|o| o.encode_special_tokens);
        tokenizer.set_encode_special_tokens(encode_special);
        Ok(tokenizer)
    })
}

/// Like [`tokenizers_from_bytes`], with every encoding cut to `max_len` tokens. `direction`
/// says which end is cut: 0 left, 1 right.
///
/// # Safety
/// `config` must point to `len` bytes, `error` must be null or valid.
#[no_mangle]
pub unsafe extern "C" fn tokenizers_from_bytes_with_truncation(
    config: *const u8,
    len: u32,
    max_len: usize,
    direction: u8,
    error: *mut *mut c_char,
) -> *mut c_void {
    load(error, || {
        let direction = match direction {
            0 => TruncationDirection::Left,
            1 => TruncationDirection::Right,
            other => {
                return Err(format!(
                    "truncation direction {other}: want 0 (left) or 1 (right)"
                ))
            }
        };
        let mut tokenizer = parse(config, len)?;
        let truncation = TruncationParams {
            direction,
            max_length: max_len,
            strategy: TruncationStrategy::LongestFirst,
            stride: 0,
        };
        tokenizer
            .with_truncation(Some(truncation))
            .map_err(|e| format!("set truncation: {e}"))?;
        Ok(tokenizer)
    })
}

/// Like [`tokenizers_from_bytes`], from the file at `config`, with special tokens recognised.
///
/// # Safety
/// `config` must be null or a C string, `error` must be null or valid.
#[no_mangle]
pub unsafe extern "C" fn tokenizers_from_file(
    config: *const c_char,
    error: *mut *mut c_char,
) -> *mut c_void {
    load(error, || {
        if config.is_null() {
            return Err("the path is null".into());
        }
        let path = CStr::from_ptr(config)
            .to_str()
            .map_err(|e| format!("the path is not UTF-8: {e}"))?;
        let bytes = std::fs::read(path).map_err(|e| format!("{path}: {e}"))?;
        parse_slice(&bytes).map_err(|e| format!("{path}: {e}"))
    })
}

/// Always fails: tiktoken files are not supported by this build.
///
/// # Safety
/// `error` must be null or valid.
#[no_mangle]
pub unsafe extern "C" fn tokenizers_from_tiktoken(
    _model_file: *const c_char,
    _config_file: *const c_char,
    _pattern: *const c_char,
    error: *mut *mut c_char,
) -> *mut c_void {
    load(error, || {
        Err("tiktoken is not built in: convert the vocabulary to tokenizer.json".into())
    })
}

/// Encodes `message` (modified UTF-8, see the crate's description).
///
/// # Safety
/// `tokenizer` must be null or come from a constructor above and not be freed, `message` must
/// be null or a C string, `options` null or valid.
#[no_mangle]
pub unsafe extern "C" fn tokenizers_encode(
    tokenizer: *mut c_void,
    message: *const c_char,
    options: *const tokenizers_encode_options,
) -> tokenizers_buffer {
    let encoded = guard(|| {
        let tokenizer = &engine(tokenizer)?.tokenizer;
        let options = options.as_ref().ok_or("the options are null")?;
        if message.is_null() {
            return Err("the text is null".into());
        }
        encode(tokenizer, CStr::from_ptr(message).to_bytes(), options)
    });
    encoded.unwrap_or(tokenizers_buffer::FAILED)
}

/// Decodes ids to modified UTF-8 (see the crate's description), or returns null on failure.
/// The result is freed with [`tokenizers_free_string`].
///
/// # Safety
/// `tokenizer` as for [`tokenizers_encode`]; `ids` must point to `len` numbers.
#[no_mangle]
pub unsafe extern "C" fn tokenizers_decode(
    tokenizer: *mut c_void,
    ids: *const u32,
    len: u32,
    skip_special_tokens: bool,
) -> *mut c_char {
    let decoded = guard(|| {
        let tokenizer = &engine(tokenizer)?.tokenizer;
        let ids: &[u32] = match len {
            0 => &[],
            _ if ids.is_null() => return Err("the ids are null".into()),
            n => std::slice::from_raw_parts(ids, n as usize),
        };
        let text = tokenizer
            .decode(ids, skip_special_tokens)
            .map_err(|e| e.to_string())?;
        CString::new(spell_nul(text.into_bytes())).map_err(|e| e.to_string())
    });
    decoded.map_or(null_mut(), CString::into_raw)
}

/// The number of ids, added tokens included; 0 on failure.
///
/// # Safety
/// `tokenizer` as for [`tokenizers_encode`].
#[no_mangle]
pub unsafe extern "C" fn tokenizers_vocab_size(tokenizer: *mut c_void) -> u32 {
    let size = guard(|| u32::try_from(engine(tokenizer)?.vocab_size()).map_err(|e| e.to_string()));
    size.unwrap_or(0)
}

/// Frees a tokenizer; null is fine.
///
/// # Safety
/// `tokenizer` must be null or come from a constructor above, and be in use nowhere.
#[no_mangle]
pub unsafe extern "C" fn tokenizers_free_tokenizer(tokenizer: *mut c_void) {
    let _ = guard(|| {
        if !tokenizer.is_null() {
            drop(Box::from_raw(tokenizer.cast::<Engine>()));
        }
        Ok(())
    });
}

/// Frees what [`tokenizers_encode`] returned.
///
/// # Safety
/// `buffer` must come from [`tokenizers_encode`] and be freed once.
#[no_mangle]
pub unsafe extern "C" fn tokenizers_free_buffer(buffer: tokenizers_buffer) {
    let _ = guard(|| {
        let len = buffer.len;
        if len == 0 {
            return Ok(()); // a failure or empty(): nothing was allocated
        }
        for array in [
            buffer.ids,
            buffer.type_ids,
            buffer.special_tokens_mask,
            buffer.attention_mask,
        ] {
            take_back(array, len);
        }
        take_back(buffer.offsets, 2 * len);
        if !buffer.tokens.is_null() {
            let tokens = std::slice::from_raw_parts(buffer.tokens, len);
            for &token in tokens {
                drop(CString::from_raw(token));
            }
        }
        take_back(buffer.tokens, len);
        Ok(())
    });
}

/// Frees a string made by this library; null is fine.
///
/// # Safety
/// `string` must be null or come from this library, and be freed once.
#[no_mangle]
pub unsafe extern "C" fn tokenizers_free_string(string: *mut c_char) {
    let _ = guard(|| {
        if !string.is_null() {
            drop(CString::from_raw(string));
        }
        Ok(())
    });
}

/// Runs `work`; a panic in it becomes an error with the panic's message.
fn guard<T>(work: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    #[cfg(not(test))]
    static QUIET: std::sync::Once = std::sync::Once::new();
    // The panic is returned as an error, so it must not be printed as well. The hook belongs
    // to this library's own copy of the Rust runtime and touches no other Rust code. Under
    // test it would hide the message of a failed assertion.
    #[cfg(not(test))]
    QUIET.call_once(|| std::panic::set_hook(Box::new(|_| {})));
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(result) => result,
        Err(payload) => {
            let message = payload
                .downcast_ref::<&str>()
                .map(|s| (*s).to_owned())
                .or_else(|| payload.downcast_ref::<String>().cloned())
                .unwrap_or_else(|| "no message".into());
            Err(format!("panic in the tokenizers crate: {message}"))
        }
    }
}

/// Runs a constructor and hands its tokenizer, or its message, to C.
unsafe fn load(
    error: *mut *mut c_char,
    make: impl FnOnce() -> Result<Tokenizer, String>,
) -> *mut c_void {
    let message = match guard(make) {
        Ok(tokenizer) => return Box::into_raw(Box::new(Engine::new(tokenizer))).cast(),
        Err(message) => message,
    };
    if !error.is_null() {
        let spelled = CString::new(spell_nul(message.into_bytes())).unwrap_or_default();
        *error = spelled.into_raw();
    }
    null_mut()
}

/// What a handle points at.
unsafe fn engine<'a>(handle: *mut c_void) -> Result<&'a Engine, String> {
    let engine = handle.cast::<Engine>().as_ref();
    engine.ok_or_else(|| "the tokenizer is null".into())
}

unsafe fn parse(config: *const u8, len: u32) -> Result<Tokenizer, String> {
    if config.is_null() {
        return Err("the tokenizer data is null".into());
    }
    parse_slice(std::slice::from_raw_parts(config, len as usize))
}

fn parse_slice(bytes: &[u8]) -> Result<Tokenizer, String> {
    let mut tokenizer = Tokenizer::from_bytes(bytes).map_err(|e| e.to_string())?;
    tokenizer.with_truncation(None).map_err(|e| e.to_string())?;
    tokenizer.with_padding(None);
    Ok(tokenizer)
}

fn encode(
    tokenizer: &Tokenizer,
    message: &[u8],
    options: &tokenizers_encode_options,
) -> Result<tokenizers_buffer, String> {
    let restored; // lives as long as text when there was something to restore
    let text = match std::str::from_utf8(message) {
        Ok(text) => text,
        Err(_) => {
            restored = restore_nul(message);
            std::str::from_utf8(&restored).map_err(|e| format!("the text is not UTF-8: {e}"))?
        }
    };
    // The fast way leaves offsets and spellings out; the ids are the same.
    let encoding = if options.return_offsets || options.return_tokens {
        tokenizer.encode(text, options.add_special_tokens)
    } else {
        tokenizer.encode_fast(text, options.add_special_tokens)
    };
    give(&encoding.map_err(|e| e.to_string())?, options)
}

/// Copies the asked-for parts of an encoding into arrays owned by C.
fn give(
    encoding: &Encoding,
    options: &tokenizers_encode_options,
) -> Result<tokenizers_buffer, String> {
    let len = encoding.len();
    if len == 0 {
        return Ok(tokenizers_buffer::empty());
    }
    // Fallible work comes first: nothing below may return before the arrays have an owner.
    let tokens = if options.return_tokens {
        Some(c_strings(encoding.get_tokens())?)
    } else {
        None
    };
    let only_if = |wanted: bool, array: &[u32]| {
        if wanted {
            hand_over(array.to_vec())
        } else {
            null_mut()
        }
    };
    let offsets = || {
        encoding
            .get_offsets()
            .iter()
            .flat_map(|&(start, end)| [start, end])
            .collect()
    };
    Ok(tokenizers_buffer {
        ids: hand_over(encoding.get_ids().to_vec()),
        type_ids: only_if(options.return_type_ids, encoding.get_type_ids()),
        special_tokens_mask: only_if(
            options.return_special_tokens_mask,
            encoding.get_special_tokens_mask(),
        ),
        attention_mask: only_if(options.return_attention_mask, encoding.get_attention_mask()),
        tokens: tokens.map_or(null_mut(), |list| {
            hand_over(list.into_iter().map(CString::into_raw).collect())
        }),
        offsets: if options.return_offsets {
            hand_over(offsets())
        } else {
            null_mut()
        },
        len,
    })
}

fn c_strings(tokens: &[String]) -> Result<Vec<CString>, String> {
    let spelled = tokens
        .iter()
        .map(|token| CString::new(spell_nul(token.clone().into_bytes())));
    spelled.collect::<Result<_, _>>().map_err(|e| e.to_string())
}

/// Leaks an array to C; [`take_back`] frees it.
fn hand_over<T>(array: Vec<T>) -> *mut T {
    Box::into_raw(array.into_boxed_slice()).cast()
}

unsafe fn take_back<T>(array: *mut T, len: usize) {
    if !array.is_null() {
        drop(Box::from_raw(std::ptr::slice_from_raw_parts_mut(
            array, len,
        )));
    }
}

/// Writes each NUL as `C0 80`.
fn spell_nul(text: Vec<u8>) -> Vec<u8> {
    if !text.contains(&0) {
        return text;
    }
    let mut spelled = Vec::with_capacity(text.len() + 8);
    for byte in text {
        match byte {
            0 => spelled.extend_from_slice(&NUL_SPELLING),
            other => spelled.push(other),
        }
    }
    spelled
}

/// Turns each `C0 80` into NUL. Other invalid bytes stay and fail the UTF-8 check that follows.
fn restore_nul(message: &[u8]) -> Vec<u8> {
    let mut text = Vec::with_capacity(message.len());
    let mut rest = message;
    while let [first, tail @ ..] = rest {
        if rest.starts_with(&NUL_SPELLING) {
            text.push(0);
            rest = &rest[NUL_SPELLING.len()..];
        } else {
            text.push(*first);
            rest = tail;
        }
    }
    text
}

#[cfg(test)]
mod tests;
