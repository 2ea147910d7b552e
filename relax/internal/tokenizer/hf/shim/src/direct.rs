//! The one symbol that daulet/tokenizers does not know. Its own way to encode takes four calls
//! from Go and copies the text once and the ids twice; this one reads and writes Go's memory.

use std::ffi::{c_char, c_void, CString};

use crate::{engine, guard, spell_nul};

/// What [`hfshim_encode`] returns.
#[repr(C)]
pub struct relax_tokenizers_ids {
    /// How many ids the text has. Where that is more than there was room for, only as many
    /// were written; call again with more room.
    pub(crate) len: usize,
    /// Null, or what failed, to be freed with [`crate::tokenizers_free_string`].
    pub(crate) error: *mut c_char,
}

/// Encodes `len` bytes of UTF-8 at `text`, NUL bytes included, without special tokens, and
/// writes the ids to `ids`, which has room for `room` of them. With `inner` the text follows
/// other tokens. Truncation of [`crate::tokenizers_from_bytes_with_truncation`] is not applied.
///
/// # Safety
/// `tokenizer` as for [`crate::tokenizers_encode`]. `text` must point to `len` bytes, `ids` to
/// room for `room` numbers; each may be null if its count is 0. Neither is kept.
#[no_mangle]
pub unsafe extern "C" fn hfshim_encode(
    tokenizer: *mut c_void,
    text: *const u8,
    len: usize,
    inner: bool,
    ids: *mut u32,
    room: usize,
) -> relax_tokenizers_ids {
    let encoded = guard(|| {
        let text: &[u8] = match len {
            0 => &[],
            _ if text.is_null() => return Err("the text is null".into()),
            n => std::slice::from_raw_parts(text, n),
        };
        let text = std::str::from_utf8(text).map_err(|e| format!("the text is not UTF-8: {e}"))?;
        let ids: &mut [u32] = match room {
            0 => &mut [],
            _ if ids.is_null() => return Err("the room for ids is null".into()),
            n => std::slice::from_raw_parts_mut(ids, n),
        };
        engine(tokenizer)?
            .ids(text, inner, ids)
            .map_err(|e| e.to_string())
    });
    match encoded {
        Ok(len) => relax_tokenizers_ids {
            len,
            error: std::ptr::null_mut(),
        },
        Err(message) => relax_tokenizers_ids {
            len: 0,
            error: CString::new(spell_nul(message.into_bytes()))
                .unwrap_or_default()
                .into_raw(),
        },
    }
}
