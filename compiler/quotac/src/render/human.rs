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
            Origin::path(self.text.name())
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
            .path(self.text.name())
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

/// `text` with lone carriage returns as line feeds, since they end lines, and C1 controls, which a terminal obeys, as `¿`:
/// of one size each, so that places stay.
fn visible_text(text: &str) -> String {
    let mut visible = String::with_capacity(text.len());
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        visible.push(match character {
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
