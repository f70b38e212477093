//! What a text must be before the scanner sees it: small enough, UTF-8, without characters or numbers of directives that
//! serve nobody. Every fault is reported; places are those of the text as it is shown.

use crate::Limits;
use crate::codes;
use crate::diagnostic::Diagnostic;
use crate::span::Span;

/// The most lines that start with `%`. The scanner compares each `%TAG` with all before it.
const MAX_DIRECTIVES: usize = 8;

/// The most faults of one code: a binary file has as many as it has bytes.
const MAX_FAULTS: usize = 20;

/// The largest file whatever the limit, so that every offset of the text as shown (a bad byte takes three) fits 32 bits.
const MAX_BYTES: u64 = 1 << 30;

/// A text and what keeps it from being read.
#[derive(Debug)]
pub(super) struct Gated {
    pub(super) text: String,
    /// Empty: the text may be read.
    pub(super) faults: Vec<Diagnostic>,
}

/// The text of a file's `bytes`.
pub(super) fn pass(bytes: &[u8], limits: Limits) -> Gated {
    let max_bytes = limits.max_bytes.min(MAX_BYTES);
    if bytes.len() as u64 > max_bytes {
        // Whoever read the file may have stopped behind the limit: how large it is is not known.
        let fault = Diagnostic::new(
            &codes::TEXT_TOO_LARGE,
            "",
            Span::default(),
            format!("the file is larger than {max_bytes} bytes, the most that are read"),
        );
        return Gated {
            text: String::new(),
            faults: vec![fault.with_help(if max_bytes < MAX_BYTES {
                "check that this is the file you mean, or raise the limit with `--max-bytes`"
            } else {
                "check that this is the file you mean"
            })],
        };
    }
    if let Some(gated) = utf16(bytes) {
        return gated;
    }
    let (text, bad) = replace_bad_bytes(bytes);
    let mut faults = bad;
    faults.append(&mut forbidden_characters(&text));
    faults.extend(directives(&text));
    Gated { text, faults }
}

/// A file that says it is UTF-16, decoded for showing.
fn utf16(bytes: &[u8]) -> Option<Gated> {
    let (order, unit): (&str, fn([u8; 2]) -> u16) = match bytes {
        [0xff, 0xfe, ..] => ("little", u16::from_le_bytes),
        [0xfe, 0xff, ..] => ("big", u16::from_be_bytes),
        _ => return None,
    };
    let units = bytes.chunks_exact(2).skip(1).filter_map(|pair| {
        let pair: [u8; 2] = pair.try_into().ok()?;
        Some(unit(pair))
    });
    let text: String = char::decode_utf16(units)
        .map(|decoded| decoded.unwrap_or(char::REPLACEMENT_CHARACTER))
        .collect();
    let fault = Diagnostic::new(
        &codes::NOT_UTF8,
        "",
        Span::default(),
        format!("the file is UTF-16 ({order}-endian), not UTF-8"),
    )
    .with_help("save it as UTF-8");
    Some(Gated {
        text,
        faults: vec![fault],
    })
}

/// The text with every byte that is not UTF-8 as one U+FFFD, and a fault for each run of them.
fn replace_bad_bytes(bytes: &[u8]) -> (String, Vec<Diagnostic>) {
    let mut text = String::with_capacity(bytes.len());
    let mut runs: Vec<(Span, Vec<u8>)> = Vec::new();
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        for byte in chunk.invalid() {
            let start = offset(text.len());
            text.push(char::REPLACEMENT_CHARACTER);
            let end = offset(text.len());
            match runs.last_mut() {
                Some((span, run)) if span.end == start => {
                    span.end = end;
                    run.push(*byte);
                }
                _ => runs.push((Span::new(start, end), vec![*byte])),
            }
        }
    }
    let faults = runs.iter().map(|(span, run)| {
        let shown: Vec<String> = run
            .iter()
            .take(4)
            .map(|byte| format!("0x{byte:02X}"))
            .collect();
        let rest = if run.len() > 4 { " …" } else { "" };
        let (what, are) = if run.len() == 1 {
            ("byte", "is")
        } else {
            ("bytes", "are")
        };
        let shown = shown.join(" ");
        Diagnostic::new(
            &codes::NOT_UTF8,
            "",
            *span,
            format!("{what} {shown}{rest} {are} not UTF-8"),
        )
        .with_help("save the file as UTF-8")
    });
    let faults = at_most(faults);
    (text, faults)
}

/// A fault for each run of characters that YAML forbids, or that nobody sees.
fn forbidden_characters(text: &str) -> Vec<Diagnostic> {
    let mut runs: Vec<(Span, char)> = Vec::new();
    for (at, character) in text.char_indices() {
        let byte_order_mark = character == '\u{feff}' && at > 0;
        if is_allowed(character) && !byte_order_mark {
            continue;
        }
        let end = at + character.len_utf8();
        match runs.last_mut() {
            Some((span, of)) if span.end as usize == at && *of == character => {
                span.end = offset(end);
            }
            _ => runs.push((Span::new(offset(at), offset(end)), character)),
        }
    }
    at_most(runs.iter().map(|(span, character)| {
        let code = u32::from(*character);
        let diagnostic = Diagnostic::new(
            &codes::CONTROL_CHARACTER,
            "",
            *span,
            match character {
                '\u{feff}' => "a byte order mark (U+FEFF) stands inside the text".to_owned(),
                '\0' => "a NUL character (U+0000) stands in the text".to_owned(),
                _ => format!("the character U+{code:04X} is not allowed in YAML"),
            },
        );
        diagnostic.with_help(if *character == '\u{feff}' {
            "remove it; it is invisible, and only the start of a file may have one"
        } else {
            "remove it, or write it as an escape in double quotes"
        })
    }))
}

/// The characters of YAML 1.1 that the scanner reads.
const fn is_allowed(character: char) -> bool {
    matches!(
        character,
        '\t' | '\n'
            | '\r'
            | ' '..='~'
            | '\u{85}'
            | '\u{a0}'..='\u{d7ff}'
            | '\u{e000}'..='\u{fffd}'
            | '\u{10000}'..='\u{10ffff}'
    )
}

/// The fault of too many lines that start with `%`, at the first too many.
fn directives(text: &str) -> Option<Diagnostic> {
    let mut starts = 0;
    let mut at = 0;
    for line in text.split_inclusive(['\n', '\r']) {
        if line.starts_with('%') {
            starts += 1;
            if starts > MAX_DIRECTIVES {
                return Some(
                    Diagnostic::new(
                        &codes::TOO_MANY_DIRECTIVES,
                        "",
                        Span::new(offset(at), offset(at + line.trim_end().len())),
                        format!("more than {MAX_DIRECTIVES} lines start with `%`"),
                    )
                    .with_help(
                        "a policy file needs no directives; quote values that start with `%`",
                    ),
                );
            }
        }
        at += line.len();
    }
    None
}

/// The first faults of one code, the last of them saying how many there are.
fn at_most(faults: impl ExactSizeIterator<Item = Diagnostic>) -> Vec<Diagnostic> {
    let left_out = faults.len().saturating_sub(MAX_FAULTS);
    let mut faults: Vec<Diagnostic> = faults.take(MAX_FAULTS).collect();
    if left_out > 0
        && let Some(last) = faults.last_mut()
    {
        last.message.push_str(&format!(
            " ({left_out} more places like this one are not listed)"
        ));
    }
    faults
}

fn offset(at: usize) -> u32 {
    u32::try_from(at).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks codes and offending text of each fault.
    #[track_caller]
    fn check(bytes: &[u8], expected: &[(&str, &str)]) {
        let gated = pass(bytes, Limits::default());
        let found: Vec<(&str, &str)> = gated
            .faults
            .iter()
            .map(|fault| {
                let part = gated.text.get(fault.span.range()).expect("inside the text");
                (fault.code.id, part)
            })
            .collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn a_sound_text_passes() {
        check(b"", &[]);
        check("\u{feff}a: \t\u{85}é\u{2028}\u{1f980}\r\n".as_bytes(), &[]);
    }

    #[test]
    fn every_fault_is_reported_at_its_bytes() {
        check(
            b"a\xff\xfeb\xc3",
            &[("Q0102", "\u{fffd}\u{fffd}"), ("Q0102", "\u{fffd}")],
        );
        check(b"a\0\0\x01", &[("Q0103", "\0\0"), ("Q0103", "\u{1}")]);
        check(
            "a\u{feff}\u{7f}\u{9f}".as_bytes(),
            &[
                ("Q0103", "\u{feff}"),
                ("Q0103", "\u{7f}"),
                ("Q0103", "\u{9f}"),
            ],
        );
        check(b"\xff\x00%a", &[("Q0102", "\u{fffd}"), ("Q0103", "\0")]);
        check(b"\xff\xfea\0:\0", &[("Q0102", "")]);
        check(b"\xfe\xff\0a", &[("Q0102", "")]);
        check("%a\n".repeat(8).as_bytes(), &[]);
        check("%a\r\n".repeat(9).as_bytes(), &[("Q0113", "%a")]);
    }

    #[test]
    fn a_binary_file_gives_few_faults() {
        let gated = pass(&b"\xffx".repeat(1000), Limits::default());
        assert_eq!(gated.faults.len(), MAX_FAULTS);
        assert!(gated.faults[MAX_FAULTS - 1].message.contains("980 more"));
    }

    #[test]
    fn the_size_is_checked_before_anything_else() {
        let limits = Limits {
            max_bytes: 3,
            ..Limits::default()
        };
        assert!(pass(b"a\n\n", limits).faults.is_empty());
        let faults = pass(b"\xff\xff\xff\xff", limits).faults;
        assert_eq!(faults.len(), 1);
        assert_eq!(faults[0].code.id, "Q0101");
    }
}
