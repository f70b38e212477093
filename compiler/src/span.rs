//! Places in a policy file: byte ranges, and the text they point into.

use std::fmt;
use std::ops::Range;

/// A range of bytes of one policy file, half open. Offsets count from the first byte of the file, a byte order mark
/// included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span {
    /// Offset of the first byte.
    pub start: u32,
    /// Offset just past the last byte; never before `start`.
    pub end: u32,
}

impl Span {
    /// The span from `start` to `end`, in bytes. A reversed pair gives the empty span at `start`.
    #[must_use]
    pub const fn new(start: u32, end: u32) -> Self {
        Self {
            start,
            end: if end < start { start } else { end },
        }
    }

    /// The empty span at `offset`.
    #[must_use]
    pub const fn at(offset: u32) -> Self {
        Self {
            start: offset,
            end: offset,
        }
    }

    /// The range of bytes.
    #[must_use]
    pub const fn range(self) -> Range<usize> {
        self.start as usize..self.end as usize
    }

    /// Whether `other` lies inside this span.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.start <= other.start && other.end <= self.end
    }
}

/// A place as people count: both from 1, columns in Unicode scalar values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Line, from 1. LF, CRLF and a lone CR end a line.
    pub line: u32,
    /// Column, from 1, in Unicode scalar values.
    pub column: u32,
}

/// The text of one policy file with the index of its lines.
///
/// Bytes that are not UTF-8 have been replaced one by one, so offsets of the text are those of [`PolicyText::as_str`].
#[derive(Clone)]
pub struct PolicyText {
    name: Box<str>,
    text: String,
    line_starts: Box<[u32]>,
    /// How many characters begin before each multiple of `STRIDE` bytes, so that a place far into a long line costs no more
    /// than one at its start.
    characters: Box<[u32]>,
    secrets: Vec<Span>,
}

impl fmt::Debug for PolicyText {
    /// Without secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PolicyText")
            .field("name", &self.name)
            .field("text", &self.shown())
            .finish_non_exhaustive()
    }
}

/// Bytes from one entry of [`PolicyText::characters`] to the next.
const STRIDE: usize = 1024;

impl PolicyText {
    /// The text of the file called `name` (a path, or `<stdin>`).
    #[must_use]
    pub fn new(name: impl Into<String>, text: impl Into<String>) -> Self {
        let text = text.into();
        let bytes = text.as_bytes();
        let mut line_starts = vec![0];
        for (index, byte) in bytes.iter().enumerate() {
            let ends_line = match byte {
                b'\n' => true,
                b'\r' => bytes.get(index + 1) != Some(&b'\n'),
                _ => false,
            };
            if ends_line && let Ok(next) = u32::try_from(index + 1) {
                line_starts.push(next);
            }
        }
        let mut characters = vec![0];
        let mut count = 0;
        for start in (0..bytes.len()).step_by(STRIDE) {
            count += characters_in(bytes, start..(start + STRIDE).min(bytes.len()));
            characters.push(count);
        }
        Self {
            name: name.into().into(),
            text,
            line_starts: line_starts.into(),
            characters: characters.into(),
            secrets: Vec::new(),
        }
    }

    /// The name of the file, as it was given.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The whole text, secrets included: for reading, never for showing.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Marks `span` as a secret: every rendering of the text masks it.
    pub fn hide(&mut self, span: Span) {
        self.secrets.push(self.clamp(span));
    }

    /// The text as it may be shown: each character of a secret is replaced by `*` (as many as the character has bytes), so
    /// that offsets stay the same.
    #[must_use]
    pub fn shown(&self) -> String {
        let mut secrets = self.secrets.clone();
        secrets.sort_unstable();
        let mut secrets = secrets.into_iter().peekable();
        // The furthest end of the secrets that begin at or before the character.
        let mut hidden_until = 0;
        let mut shown = String::with_capacity(self.text.len());
        for (offset, character) in self.text.char_indices() {
            while let Some(secret) = secrets.next_if(|secret| secret.start as usize <= offset) {
                hidden_until = hidden_until.max(secret.end as usize);
            }
            let secret = character != '\n' && character != '\r' && offset < hidden_until;
            if secret {
                shown.extend(std::iter::repeat_n('*', character.len_utf8()));
            } else {
                shown.push(character);
            }
        }
        shown
    }

    /// Moves both ends of `span` into the text and onto character boundaries.
    #[must_use]
    pub fn clamp(&self, span: Span) -> Span {
        let floor = |offset: u32| {
            let mut at = (offset as usize).min(self.text.len());
            while !self.text.is_char_boundary(at) {
                at -= 1;
            }
            u32::try_from(at).unwrap_or(u32::MAX)
        };
        Span::new(floor(span.start), floor(span.end))
    }

    /// The bytes of `span` as text, clamped to the file.
    #[must_use]
    pub fn slice(&self, span: Span) -> &str {
        self.text.get(self.clamp(span).range()).unwrap_or("")
    }

    /// The place of the byte at `offset`; the end of the file for an offset beyond it.
    #[must_use]
    pub fn place(&self, offset: u32) -> Place {
        let offset = self.clamp(Span::at(offset)).start;
        let line = self.line(offset);
        let start = self
            .line_starts
            .get(line as usize - 1)
            .copied()
            .unwrap_or(0);
        let column = self.characters_before(offset) - self.characters_before(start) + 1;
        Place { line, column }
    }

    /// How many characters begin before `offset`, which lies on the boundary of one.
    fn characters_before(&self, offset: u32) -> u32 {
        let block = offset as usize / STRIDE;
        let before_block = self.characters.get(block).copied().unwrap_or(0);
        before_block + characters_in(self.text.as_bytes(), block * STRIDE..offset as usize)
    }

    /// The line of the byte at `offset`, from 1.
    #[must_use]
    pub fn line(&self, offset: u32) -> u32 {
        let line = self.line_starts.partition_point(|start| *start <= offset);
        u32::try_from(line).unwrap_or(u32::MAX).max(1)
    }
}

/// How many characters begin in `range`. The byte order mark at the start of a file is none: it takes no column.
fn characters_in(bytes: &[u8], range: Range<usize>) -> u32 {
    let mark = range.start == 0 && range.end > 0 && bytes.starts_with("\u{feff}".as_bytes());
    let begin = bytes.get(range).unwrap_or_default().iter();
    let begin = begin.filter(|byte| **byte & 0xC0 != 0x80).count();
    u32::try_from(begin).unwrap_or(u32::MAX) - u32::from(mark)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, offset: u32, line: u32, column: u32) {
        assert_eq!(
            PolicyText::new("p.yaml", text).place(offset),
            Place { line, column }
        );
    }

    #[test]
    fn places_count_lines_and_characters_from_one() {
        check("", 0, 1, 1);
        check("a\nb", 2, 2, 1);
        check("a\r\nbc", 4, 2, 2);
        check("a\rbc", 2, 2, 1);
        check("wé€x", 6, 1, 4);
        check("a", 99, 1, 2);
        check("\u{feff}a", 3, 1, 1);
    }

    #[test]
    fn places_far_into_a_long_line_count_the_same() {
        let text = format!("\u{feff}a\n{}", "ab€\u{feff}🎉".repeat(500));
        let policy_text = PolicyText::new("p.yaml", text.clone());
        let line = text.split_once('\n').unwrap().1;
        let line_start = text.len() - line.len();
        for (column, (offset, _)) in line.char_indices().enumerate() {
            assert_eq!(
                policy_text.place(u32::try_from(line_start + offset).unwrap()),
                Place {
                    line: 2,
                    column: u32::try_from(column + 1).unwrap()
                }
            );
        }
    }

    #[test]
    fn a_secret_is_masked_and_moves_nothing() {
        let mut text = PolicyText::new("p.yaml", "url: redis://u:pä@h\n");
        text.hide(Span::new(15, 18));
        assert_eq!(text.shown(), "url: redis://u:***@h\n");
        assert_eq!(text.shown().len(), text.as_str().len());
    }
}
