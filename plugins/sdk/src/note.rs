//! The note in the library file, which describes it without running it.

use quota_plugin_abi::{
    QUOTA_ABI_MAJOR, QUOTA_ABI_MINOR, QUOTA_KIND_MAX, QUOTA_NOTE_HEADER_SIZE, QUOTA_NOTE_MAGIC,
    QUOTA_NOTE_NAME, QUOTA_NOTE_NAME_LEN, QUOTA_NOTE_TYPE, quota_note,
};

/// A note with `N` bytes of schema; made by [`export_backend!`](crate::export_backend).
#[derive(Debug)]
#[repr(C)]
pub struct Note<const N: usize> {
    fixed: quota_note,
    schema: [u8; N],
}

/// Bytes the schema takes in a note: its length, rounded up to a multiple of four.
#[must_use]
pub const fn padded_len(schema: &str) -> usize {
    schema.len().next_multiple_of(4)
}

impl<const N: usize> Note<N> {
    /// The note of a kind and its options schema; `N` is the schema's [`padded_len`]. A kind or schema that does not
    /// fit stops the build.
    #[must_use]
    #[expect(
        clippy::missing_panics_doc,
        reason = "evaluated while compiling, where a panic is a compile error"
    )]
    pub const fn new(kind: &str, schema: &str) -> Self {
        assert!(
            is_kind(kind.as_bytes()),
            "KIND must be of the form [a-z][a-z0-9_]{{0,31}}"
        );
        assert!(N == padded_len(schema), "N must be padded_len(schema)");
        assert!(schema.len() < 1 << 20, "the options schema is too long");
        let mut fixed = quota_note {
            namesz: QUOTA_NOTE_NAME_LEN,
            descsz: to_u32(size_of::<quota_note>() + N) - QUOTA_NOTE_HEADER_SIZE,
            note_type: QUOTA_NOTE_TYPE,
            name: QUOTA_NOTE_NAME,
            magic: QUOTA_NOTE_MAGIC,
            abi_major: QUOTA_ABI_MAJOR,
            abi_minor: QUOTA_ABI_MINOR,
            kind_len: to_u32(kind.len()),
            schema_len: to_u32(N),
            kind: [0; QUOTA_KIND_MAX],
        };
        fixed
            .kind
            .split_at_mut(kind.len())
            .0
            .copy_from_slice(kind.as_bytes());
        let mut padded = [b' '; N];
        padded
            .split_at_mut(schema.len())
            .0
            .copy_from_slice(schema.as_bytes());
        Self {
            fixed,
            schema: padded,
        }
    }
}

const fn is_kind(kind: &[u8]) -> bool {
    if kind.is_empty() || kind.len() > QUOTA_KIND_MAX || !kind[0].is_ascii_lowercase() {
        return false;
    }
    let mut at = 1;
    while at < kind.len() {
        if !matches!(kind[at], b'a'..=b'z' | b'0'..=b'9' | b'_') {
            return false;
        }
        at += 1;
    }
    true
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "asserted to fit on the line before"
)]
const fn to_u32(number: usize) -> u32 {
    assert!(number <= u32::MAX as usize);
    number as u32
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    const SCHEMA: &str = r#"{"type":"object"}"#;

    #[test]
    fn nothing_follows_the_schema() {
        const N: usize = padded_len(SCHEMA);
        let note = Note::<N>::new("acme_dynamo", SCHEMA);
        assert_eq!(N, 20);
        assert_eq!(size_of::<Note<N>>(), size_of::<quota_note>() + N);
        assert_eq!(offset_of!(Note<N>, schema), size_of::<quota_note>());
        assert_eq!(align_of::<Note<N>>(), 4);
        let header = QUOTA_NOTE_HEADER_SIZE as usize;
        assert_eq!(
            note.fixed.descsz as usize,
            size_of::<Note<N>>() - header,
            "from the magic to the end"
        );
        assert_eq!(&note.schema, b"{\"type\":\"object\"}   ");
        assert_eq!(&note.fixed.kind[..12], b"acme_dynamo\0");
    }

    #[test]
    fn kinds_have_one_form() {
        for kind in ["a", "in_memory", "acme_2"] {
            assert!(is_kind(kind.as_bytes()), "{kind}");
        }
        let long = "a".repeat(33);
        for kind in ["", "A", "1a", "_a", "a-b", "a\0", &long] {
            assert!(!is_kind(kind.as_bytes()), "{kind}");
        }
    }
}
