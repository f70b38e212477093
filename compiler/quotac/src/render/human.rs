//! The report people read: each diagnostic with the lines it is about.

use std::borrow::Cow;
use std::ops::Range;

use annotate_snippets::{
    Annotation, AnnotationKind, Group, Level, Origin, Renderer, Snippet, normalize_untrusted_str,
};
use quota_compiler::diagnostic::{Diagnostic, Severity};
use quota_compiler::span::{PolicyText, Span};

use super::FileReport;

/// Two places this many lines apart, or fewer, share one excerpt; the lines between them are folded.
const MAX_EXCERPT_LINES: usize = 64;

/// The longest line shown, in bytes; of a longer one only the place is named. Laying a line out costs time for every
/// diagnostic on it.
const MAX_LINE_BYTES: usize = 4096;

/// Every diagnostic of `reports`, and where to read more. With colours: for a stream that strips them where nobody would
/// see them. Empty when there is nothing to say.
#[must_use]
pub fn render(reports: &[FileReport]) -> String {
    let mut rendered: String = reports
        .iter()
        .map(|report| diagnostics(&report.text, &report.diagnostics))
        .collect();
    rendered.push_str(&read_more(reports));
    rendered
}

/// The diagnostics of one file, each followed by an empty line.
#[must_use]
pub fn diagnostics(text: &PolicyText, diagnostics: &[Diagnostic]) -> String {
    if diagnostics.is_empty() {
        return String::new();
    }
    let page = Page::new(text);
    let renderer = Renderer::styled();
    diagnostics
        .iter()
        .map(|diagnostic| {
            let group = page.group(diagnostic);
            format!("{}\n\n", renderer.render(&[group]))
        })
        .collect()
}

/// One line that says how to read the pages of the codes found.
fn read_more(reports: &[FileReport]) -> String {
    let mut codes: Vec<&str> = reports
        .iter()
        .flat_map(|report| &report.diagnostics)
        .map(|diagnostic| diagnostic.code.id)
        .collect();
    codes.sort_unstable();
    codes.dedup();
    match codes.as_slice() {
        [] => String::new(),
        [code] => format!("to read more: quotac explain --code {code}\n"),
        [first, ..] => format!(
            "to read more, for example: quotac explain --code {first} (found: {})\n",
            codes.join(", ")
        ),
    }
}

/// A file's text as it is shown: secrets masked, every character visible, every byte where it was.
struct Page<'a> {
    text: &'a PolicyText,
    name: Cow<'a, str>,
    shown: String,
    /// Offset of each line's first byte.
    line_starts: Vec<usize>,
}

/// A place on a page, on one line.
struct Mark {
    /// Index of the line.
    line: usize,
    /// Bytes of the page.
    range: Range<usize>,
}

impl<'a> Page<'a> {
    fn new(text: &'a PolicyText) -> Self {
        let shown = visible_text(&text.shown());
        let line_starts = std::iter::once(0)
            .chain(shown.match_indices('\n').map(|(offset, _)| offset + 1))
            .collect();
        Self {
            text,
            name: visible(text.name()),
            shown,
            line_starts,
        }
    }

    /// The place of `span`; of a span over several lines, what lies on its first.
    fn mark(&self, span: Span) -> Mark {
        let range = self.text.clamp(span).range();
        let line = self
            .line_starts
            .partition_point(|start| *start <= range.start)
            .saturating_sub(1);
        let rest = self.shown.get(range.clone()).unwrap_or("");
        let first_line = rest.split(['\n', '\r']).next().unwrap_or("");
        let length = if first_line.len() < rest.len() {
            first_line.trim_end().len()
        } else {
            rest.len()
        };
        Mark {
            line,
            range: range.start..range.start + length,
        }
    }

    /// Bytes of the lines `first` to `last`, line end included; a byte order mark stays out.
    fn lines(&self, first: usize, last: usize) -> Range<usize> {
        let start = self.line_starts.get(first).copied().unwrap_or(0);
        let end = self
            .line_starts
            .get(last + 1)
            .copied()
            .unwrap_or(self.shown.len());
        let mark = if start == 0 && self.shown.starts_with('\u{feff}') {
            '\u{feff}'.len_utf8()
        } else {
            0
        };
        start + mark..end
    }

    fn fits(&self, mark: &Mark) -> bool {
        self.lines(mark.line, mark.line).len() <= MAX_LINE_BYTES
    }

    fn group(&self, diagnostic: &'a Diagnostic) -> Group<'_> {
        let level = match diagnostic.severity {
            Severity::Error => Level::ERROR,
            Severity::Warning => Level::WARNING,
            Severity::Note => Level::NOTE,
        };
        let mut group = level
            .primary_title(visible(&diagnostic.message))
            .id(diagnostic.code.id)
            .elements(std::iter::empty::<Origin<'_>>());

        let primary = self.mark(diagnostic.span);
        let related: Vec<(Mark, Cow<'_, str>)> = diagnostic
            .related
            .iter()
            .map(|related| (self.mark(related.span), visible(&related.message)))
            .collect();
        let marks = || std::iter::once(&primary).chain(related.iter().map(|(mark, _)| mark));
        let first = marks().map(|mark| mark.line).min().unwrap_or(0);
        let last = marks().map(|mark| mark.line).max().unwrap_or(0);
        let together = last - first < MAX_EXCERPT_LINES
            && (first..=last).all(|line| self.lines(line, line).len() <= MAX_LINE_BYTES);

        if together {
            let lines = self.lines(first, last);
            let annotations = std::iter::once(annotation(&primary, None, &lines)).chain(
                related
                    .iter()
                    .map(|(mark, label)| annotation(mark, Some(label), &lines)),
            );
            group = group.element(self.snippet(first, lines.clone()).annotations(annotations));
        } else {
            group = self.apart(group, diagnostic.span, &primary, None);
            for (place, (mark, label)) in diagnostic.related.iter().zip(&related) {
                group = self.apart(group, place.span, mark, Some(label));
            }
        }
        if let Some(help) = &diagnostic.help {
            group = group.element(Level::HELP.message(visible(help)));
        }
        group
    }

    /// Adds one place with an excerpt of its own or, where its line is too long to show, without any.
    fn apart<'b>(
        &'b self,
        group: Group<'b>,
        span: Span,
        mark: &Mark,
        label: Option<&Cow<'b, str>>,
    ) -> Group<'b> {
        if self.fits(mark) {
            let lines = self.lines(mark.line, mark.line);
            let snippet = self
                .snippet(mark.line, lines.clone())
                .annotation(annotation(mark, label, &lines));
            return group.element(snippet);
        }
        let place = self.text.place(span.start);
        let group = group.element(
            Origin::path(&*self.name)
                .line(place.line as usize)
                .char_column(place.column as usize),
        );
        match label {
            Some(label) => group.element(Level::NOTE.message(label.clone())),
            None => group,
        }
    }

    fn snippet<'b>(
        &'b self,
        first_line: usize,
        lines: Range<usize>,
    ) -> Snippet<'b, Annotation<'b>> {
        Snippet::source(self.shown.get(lines).unwrap_or(""))
            .line_start(first_line + 1)
            .path(&*self.name)
    }
}

/// `mark` within an excerpt of the bytes `lines`.
fn annotation<'b>(
    mark: &Mark,
    label: Option<&Cow<'b, str>>,
    lines: &Range<usize>,
) -> Annotation<'b> {
    let within = |offset: usize| offset.clamp(lines.start, lines.end) - lines.start;
    let kind = if label.is_some() {
        AnnotationKind::Context
    } else {
        AnnotationKind::Primary
    };
    kind.span(within(mark.range.start)..within(mark.range.end))
        .label(label.cloned())
}

/// `text` with lone carriage returns as line feeds, since they end lines, C1 controls, which a terminal obeys, as `¿`, and byte
/// order marks inside it, which nobody would see, as `�`: of one size each, so that places stay.
fn visible_text(text: &str) -> String {
    let mut visible = String::with_capacity(text.len());
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        visible.push(match character {
            '\u{feff}' if !visible.is_empty() => '\u{fffd}',
            '\r' if characters.peek() != Some(&'\n') => '\n',
            '\u{80}'..='\u{9f}' => '¿',
            _ => character,
        });
    }
    visible
}

/// A message whose words may come from the file: on one line, with nothing a terminal would obey.
fn visible(message: &str) -> Cow<'_, str> {
    if message.chars().any(char::is_control) {
        let one_line: String = message
            .chars()
            .map(|character| match character {
                '\n' => '␊',
                '\t' => ' ',
                '\u{80}'..='\u{9f}' => '¿',
                _ => character,
            })
            .collect();
        Cow::Owned(normalize_untrusted_str(&one_line))
    } else {
        Cow::Owned(normalize_untrusted_str(message))
    }
}

#[cfg(test)]
mod tests {
    use anstream::adapter::strip_str;
    use expect_test::{Expect, expect};
    use quota_compiler::codes;

    use super::*;

    /// The place of the part of `text` that has `n` equal ones before it.
    fn nth(text: &str, part: &str, n: usize) -> Span {
        let (start, _) = text
            .match_indices(part)
            .nth(n)
            .expect("the text has the part");
        let offset = |at| u32::try_from(at).expect("a small text");
        Span::new(offset(start), offset(start + part.len()))
    }

    fn fault(span: Span, message: &str) -> Diagnostic {
        Diagnostic::new(&codes::WRONG_TYPE, "", span, message)
    }

    fn shown(text: &PolicyText, diagnostic: Diagnostic) -> String {
        strip_str(&diagnostics(text, &[diagnostic])).to_string()
    }

    /// Checks what is shown of a fault of the first `part` of `text`.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "expectations are written in place"
    )]
    #[track_caller]
    fn check(text: &str, part: &str, expected: Expect) {
        let span = nth(text, part, 0);
        let text = PolicyText::new("p.yaml", text);
        expected.assert_eq(&shown(&text, fault(span, "the message")));
    }

    #[test]
    fn two_places_share_an_excerpt() {
        let text = "a: 1\nb: 2\nc: 3\nd: 4\ne: 5\nf: 6\na: 7\n";
        let diagnostic = fault(nth(text, "a", 1), "`a` is given twice")
            .with_related(nth(text, "a", 0), "first given here")
            .with_help("keep one of them");
        expect![[r#"
            error[Q0203]: `a` is given twice
             --> p.yaml:7:1
              |
            1 | a: 1
              | - first given here
            ...
            7 | a: 7
              | ^
              |
              = help: keep one of them

        "#]]
        .assert_eq(&shown(&PolicyText::new("p.yaml", text), diagnostic));
    }

    #[test]
    fn two_places_of_one_line_are_both_marked() {
        let text = "{a: 1, b: 2, a: 3}\n";
        let diagnostic = fault(nth(text, "a", 1), "`a` is given twice")
            .with_related(nth(text, "a", 0), "first given here");
        expect![[r#"
            error[Q0203]: `a` is given twice
             --> p.yaml:1:14
              |
            1 | {a: 1, b: 2, a: 3}
              |  -           ^
              |  |
              |  first given here

        "#]]
        .assert_eq(&shown(&PolicyText::new("p.yaml", text), diagnostic));
    }

    #[test]
    fn places_far_apart_have_excerpts_of_their_own() {
        let text = format!("a: 1\n{}a: 2\n", "# …\n".repeat(100));
        let diagnostic = fault(nth(&text, "a", 1), "`a` is given twice")
            .with_related(nth(&text, "a", 0), "first given here");
        expect![[r#"
            error[Q0203]: `a` is given twice
               --> p.yaml:102:1
                |
            102 | a: 2
                | ^
                |
               ::: p.yaml:1:1
                |
              1 | a: 1
                | - first given here

        "#]]
        .assert_eq(&shown(&PolicyText::new("p.yaml", text), diagnostic));
    }

    #[test]
    fn of_several_lines_the_first_is_marked() {
        check(
            "a:\n  b: 1\n  c: 2\n",
            "b: 1\n  c: 2",
            expect![[r#"
            error[Q0203]: the message
             --> p.yaml:2:3
              |
            2 |   b: 1
              |   ^^^^

        "#]],
        );
    }

    #[test]
    fn lines_end_in_every_way() {
        check(
            "a: 1\r\nb: 2\r\nc: 3\r\n",
            "2",
            expect![[r#"
            error[Q0203]: the message
             --> p.yaml:2:4
              |
            2 | b: 2
              |    ^

        "#]],
        );
        check(
            "a: 1\rb: 2\rc: 3\r",
            "2",
            expect![[r#"
            error[Q0203]: the message
             --> p.yaml:2:4
              |
            2 | b: 2
              |    ^

        "#]],
        );
        check(
            "a:\r\n  b: 1\r\n  c: 2\r\n",
            "b: 1\r\n  c: 2",
            expect![[r#"
            error[Q0203]: the message
             --> p.yaml:2:3
              |
            2 |   b: 1
              |   ^^^^

        "#]],
        );
    }

    #[test]
    fn tabs_and_wide_characters_keep_marks_in_place() {
        check(
            "a:\t1\tb\n",
            "b",
            expect![[r#"
            error[Q0203]: the message
             --> p.yaml:1:6
              |
            1 | a:    1    b
              |            ^

        "#]],
        );
        check(
            "名前: 租户🦀, x: 二\n",
            "x",
            expect![[r#"
            error[Q0203]: the message
             --> p.yaml:1:10
              |
            1 | 名前: 租户🦀, x: 二
              |               ^

        "#]],
        );
        check(
            "é: e\u{301}, x\n",
            "x",
            expect![[r#"
            error[Q0203]: the message
             --> p.yaml:1:8
              |
            1 | é: é, x
              |       ^

        "#]],
        );
        check(
            "🦀: 1\n",
            "🦀",
            expect![[r#"
            error[Q0203]: the message
             --> p.yaml:1:1
              |
            1 | 🦀: 1
              | ^^

        "#]],
        );
    }

    #[test]
    fn a_fault_may_lie_at_the_end() {
        let end = |text: &str| Span::at(u32::try_from(text.len()).expect("a small text"));
        for (text, expected) in [
            (
                "",
                expect![[r#"
                error[Q0203]: the file ends here
                 --> p.yaml:1:1
                  |
                1 |
                  | ^

            "#]],
            ),
            (
                "a: [1",
                expect![[r#"
                error[Q0203]: the file ends here
                 --> p.yaml:1:6
                  |
                1 | a: [1
                  |      ^

            "#]],
            ),
            (
                "a: [1\n",
                expect![[r#"
                error[Q0203]: the file ends here
                 --> p.yaml:2:1
                  |
                2 |
                  | ^

            "#]],
            ),
            (
                "a: [1\r\n",
                expect![[r#"
                error[Q0203]: the file ends here
                 --> p.yaml:2:1
                  |
                2 |
                  | ^

            "#]],
            ),
        ] {
            expected.assert_eq(&shown(
                &PolicyText::new("p.yaml", text),
                fault(end(text), "the file ends here"),
            ));
        }
    }

    #[test]
    fn places_outside_the_text_are_moved_into_it() {
        let text = PolicyText::new("p.yaml", "é\n");
        expect![[r#"
            error[Q0203]: the message
             --> p.yaml:1:1
              |
            1 | é
              | ^

        "#]]
        .assert_eq(&shown(&text, fault(Span::new(1, 99), "the message")));
        expect![[r#"
            error[Q0203]: the message
             --> p.yaml:2:1
              |
            2 |
              | ^

        "#]]
        .assert_eq(&shown(&text, fault(Span::new(99, 100), "the message")));
    }

    #[test]
    fn a_byte_order_mark_takes_no_column() {
        check(
            "\u{feff}a: 1\n",
            "a",
            expect![[r#"
            error[Q0203]: the message
             --> p.yaml:1:1
              |
            1 | a: 1
              | ^

        "#]],
        );
        check(
            "\u{feff}a: 1\n",
            "\u{feff}",
            expect![[r#"
            error[Q0203]: the message
             --> p.yaml:1:1
              |
            1 | a: 1
              | ^

        "#]],
        );
        check(
            "a: \u{feff}1\n",
            "1",
            expect![[r#"
            error[Q0203]: the message
             --> p.yaml:1:5
              |
            1 | a: �1
              |     ^

        "#]],
        );
    }

    #[test]
    fn of_a_very_long_line_only_the_place_is_named() {
        let text = format!("a: 1\nb: [{}x]\n", "1, ".repeat(2000));
        check(
            &text,
            "x",
            expect![[r#"
            error[Q0203]: the message
            --> p.yaml:2:6005

        "#]],
        );
        let diagnostic = fault(nth(&text, "a", 0), "the message")
            .with_related(nth(&text, "x", 0), "the other place")
            .with_help("the help");
        expect![[r#"
            error[Q0203]: the message
             --> p.yaml:1:1
              |
            1 | a: 1
              | ^
             ::: p.yaml:2:6005
              = note: the other place
              = help: the help

        "#]]
        .assert_eq(&shown(&PolicyText::new("p.yaml", &*text), diagnostic));
    }

    #[test]
    fn a_terminal_is_told_nothing_by_the_file() {
        let text = "a\u{1b}[31m: \u{9b}31m\u{202e}\u{7} x\n";
        let span = nth(text, "x", 0);
        let text = PolicyText::new("p\u{1b}[31m.yaml", text);
        let diagnostic = fault(span, "a\u{1b}[31m\n\tb\u{9b}")
            .with_related(span, "c\u{1b}[31m")
            .with_help("d\u{1b}[31m\ne");
        let shown = diagnostics(&text, &[diagnostic]);
        assert!(!shown.contains("\u{1b}[31m"), "{shown:?}");
        expect![[r#"
            error[Q0203]: a␛[31m␊ b¿
             --> p␛[31m.yaml:1:16
              |
            1 | a␛[31m: ¿31m�␇ x
              |                ^
              |                |
              |                c␛[31m
              |
              = help: d␛[31m␊e

        "#]]
        .assert_eq(&strip_str(&shown).to_string());
    }

    #[test]
    fn secrets_are_masked() {
        let mut text = PolicyText::new("p.yaml", "url: redis://quota:hünter2@localhost:x\n");
        text.hide(nth(text.as_str(), "hünter2", 0));
        let diagnostic = fault(
            nth(text.as_str(), "redis://quota:hünter2@localhost:x", 0),
            "the message",
        );
        expect![[r#"
            error[Q0203]: the message
             --> p.yaml:1:6
              |
            1 | url: redis://quota:********@localhost:x
              |      ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^

        "#]]
        .assert_eq(&shown(&text, diagnostic));
    }

    #[test]
    fn severities_are_told_apart() {
        let text = PolicyText::new("p.yaml", "a: 1\n");
        let of = |code| Diagnostic::new(code, "", Span::new(0, 1), "the message");
        let found = [
            of(&codes::WRONG_TYPE),
            of(&codes::FALLBACK_PREFIX_SHARED),
            of(&codes::OPTIONS_UNCHECKED),
        ];
        let report = FileReport {
            ok: false,
            program_digest: None,
            text,
            diagnostics: found.to_vec(),
        };
        let rendered = render(&[report]);
        assert!(
            rendered.contains("\u{1b}["),
            "colours are there for whoever can show them"
        );
        expect![[r#"
            error[Q0203]: the message
             --> p.yaml:1:1
              |
            1 | a: 1
              | ^

            warning[Q0614]: the message
             --> p.yaml:1:1
              |
            1 | a: 1
              | ^

            note[Q0619]: the message
             --> p.yaml:1:1
              |
            1 | a: 1
              | ^

            to read more, for example: quotac explain --code Q0203 (found: Q0203, Q0614, Q0619)
        "#]]
        .assert_eq(&strip_str(&rendered).to_string());
    }

    #[test]
    fn nothing_found_is_nothing_said() {
        let text = PolicyText::new("p.yaml", "policies: []\n");
        let report = FileReport {
            ok: true,
            program_digest: None,
            text,
            diagnostics: Vec::new(),
        };
        assert_eq!(render(&[report]), "");
    }
}
