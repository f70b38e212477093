//! Byte-marked events of `unsafe-libyaml`, the scanner inside `serde_yaml`: the only `unsafe` of the compiler.
//!
//! `serde_yaml` tells no places; the same scanner does, and it splits a text into the same nodes by construction. The version
//! is pinned in the workspace to the one `serde_yaml` resolves to.
#![expect(
    unsafe_code,
    reason = "the scanner serde_yaml is built on has a C-like interface, fenced by this file"
)]

use std::ffi::CStr;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ptr::NonNull;

use crate::span::Span;

/// The deepest nesting of lists and mappings, that of `serde_yaml`'s typed reader.
pub(super) const MAX_DEPTH: usize = 128;

/// One event.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Event {
    pub(super) kind: EventKind,
    /// Anchor and tag included, as the scanner marks it, in bytes of the text. The scanner is told the encoding, as `serde_yaml`
    /// tells it, so that a byte order mark counts like any character, in bytes and in columns.
    pub(super) span: Span,
}

/// What an event says. Start and end of the stream are left out.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum EventKind {
    DocumentStart,
    DocumentEnd,
    Alias {
        anchor: Box<[u8]>,
    },
    Scalar {
        properties: Properties,
        value: Box<str>,
        style: Style,
    },
    SequenceStart {
        properties: Properties,
        flow: bool,
    },
    SequenceEnd,
    MappingStart {
        properties: Properties,
        flow: bool,
    },
    MappingEnd,
}

/// Anchor and tag of a node. Bytes, since escapes in a tag may spell anything.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Properties {
    pub(super) anchor: Option<Box<[u8]>>,
    pub(super) tag: Option<Box<[u8]>>,
}

/// How a scalar is written, as far as it matters to what it means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Style {
    Plain,
    Literal,
    /// Single or double quotes, or folded.
    Other,
}

/// Why there are no more events.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// The text is not YAML.
    Syntax {
        /// The scanner's own words.
        problem: String,
        /// Byte offset of the problem.
        at: u32,
        /// Byte offset of what the scanner was in the middle of.
        context: Option<u32>,
    },
    /// Lists and mappings nest deeper than [`MAX_DEPTH`]; the one too deep.
    TooDeep(Span),
    /// More events than the limit; the first one too many.
    TooMany(Span),
}

/// The events of a text, in order.
#[derive(Debug)]
pub(super) struct Events<'text> {
    parser: Parser<'text>,
    depth: usize,
    left: u64,
    ended: bool,
}

impl<'text> Events<'text> {
    /// The events of `text`, at most `limit`.
    pub(super) fn new(text: &'text str, limit: u64) -> Self {
        Self {
            parser: Parser::new(text),
            depth: 0,
            left: limit,
            ended: false,
        }
    }

    /// The next event; `None` after the last. A failure is the last thing said.
    pub(super) fn next(&mut self) -> Result<Option<Event>, Failure> {
        while !self.ended {
            match self.parser.next() {
                Ok(Parsed::Event(event)) => return self.bounded(event).map(Some),
                Ok(Parsed::StreamStart) => {}
                Ok(Parsed::StreamEnd) => self.ended = true,
                Err(failure) => {
                    self.ended = true;
                    return Err(failure);
                }
            }
        }
        Ok(None)
    }

    /// `event`, unless it breaks a bound. The scanner looks hardly more than 1,024 characters ahead of an event, so stopping
    /// here also keeps it out of the path where open flow collections cost quadratic time.
    fn bounded(&mut self, event: Event) -> Result<Event, Failure> {
        match event.kind {
            EventKind::SequenceStart { .. } | EventKind::MappingStart { .. } => self.depth += 1,
            EventKind::SequenceEnd | EventKind::MappingEnd => {
                self.depth = self.depth.saturating_sub(1);
            }
            EventKind::DocumentStart
            | EventKind::DocumentEnd
            | EventKind::Alias { .. }
            | EventKind::Scalar { .. } => {}
        }
        if self.depth > MAX_DEPTH {
            self.ended = true;
            return Err(Failure::TooDeep(event.span));
        }
        match self.left.checked_sub(1) {
            Some(left) => self.left = left,
            None => {
                self.ended = true;
                return Err(Failure::TooMany(event.span));
            }
        }
        Ok(event)
    }
}

/// What one call of the scanner yields.
enum Parsed {
    StreamStart,
    StreamEnd,
    Event(Event),
}

/// An initialized parser and the memory it lives in.
///
/// INVARIANT: `raw` comes from a leaked `Box` and holds a parser that `yaml_parser_initialize` has set up; the text it reads
/// outlives it. The parser points into itself, so it stays behind the raw pointer it was initialized through.
#[derive(Debug)]
struct Parser<'text> {
    raw: NonNull<unsafe_libyaml::yaml_parser_t>,
    text: PhantomData<&'text str>,
}

impl<'text> Parser<'text> {
    fn new(text: &'text str) -> Self {
        let memory = Box::leak(Box::<unsafe_libyaml::yaml_parser_t>::new_uninit());
        let raw = NonNull::from(memory).cast::<unsafe_libyaml::yaml_parser_t>();
        // SAFETY: `raw` points to memory of the size and alignment of a parser that nothing else refers to. It cannot fail:
        // the library allocates with Rust's allocator, which ends the process when there is no memory left.
        let initialized = unsafe { unsafe_libyaml::yaml_parser_initialize(raw.as_ptr()) };
        debug_assert!(initialized.ok, "only a failed allocation could fail");
        // SAFETY: `raw` was initialized above, and no input or encoding has been set yet.
        unsafe {
            unsafe_libyaml::yaml_parser_set_encoding(
                raw.as_ptr(),
                unsafe_libyaml::YAML_UTF8_ENCODING,
            )
        };
        // SAFETY: as above; pointer and length are those of `text`, which `'text` keeps alive longer than the parser.
        unsafe {
            unsafe_libyaml::yaml_parser_set_input_string(
                raw.as_ptr(),
                text.as_ptr(),
                text.len() as u64,
            );
        };
        Self {
            raw,
            text: PhantomData,
        }
    }

    fn next(&mut self) -> Result<Parsed, Failure> {
        let mut event = MaybeUninit::<unsafe_libyaml::yaml_event_t>::uninit();
        // SAFETY: the parser is initialized (invariant) and has not failed before (`Events` ends at a failure); `event` is
        // memory for one event, which the call clears before anything else.
        let parsed =
            unsafe { unsafe_libyaml::yaml_parser_parse(self.raw.as_ptr(), event.as_mut_ptr()) };
        if !parsed.ok {
            return Err(self.failure());
        }
        // SAFETY: the call succeeded, so it filled `event`.
        let event = OwnedEvent(unsafe { event.assume_init() });
        Ok(convert(&event.0))
    }

    /// The failure the parser has come to.
    fn failure(&self) -> Failure {
        // SAFETY: the parser is initialized (invariant), and nothing changes it while this reference lives.
        let parser = unsafe { self.raw.as_ref() };
        let problem = static_text(parser.problem).unwrap_or_else(|| "not YAML".to_owned());
        if parser.error == unsafe_libyaml::YAML_READER_ERROR {
            return Failure::Syntax {
                problem,
                at: narrow(parser.problem_offset),
                context: None,
            };
        }
        Failure::Syntax {
            problem,
            at: narrow(parser.problem_mark.index),
            context: (!parser.context.is_null()).then(|| narrow(parser.context_mark.index)),
        }
    }
}

impl Drop for Parser<'_> {
    fn drop(&mut self) {
        // SAFETY: the parser is initialized (invariant) and is not used again.
        unsafe { unsafe_libyaml::yaml_parser_delete(self.raw.as_ptr()) };
        let memory = self
            .raw
            .cast::<MaybeUninit<unsafe_libyaml::yaml_parser_t>>();
        // SAFETY: the memory was leaked from a `Box` of this very type (invariant), and nothing refers to it any more.
        drop(unsafe { Box::from_raw(memory.as_ptr()) });
    }
}

/// An event the library has filled, freed when dropped.
struct OwnedEvent(unsafe_libyaml::yaml_event_t);

impl Drop for OwnedEvent {
    fn drop(&mut self) {
        // SAFETY: the event was filled by the library, and is freed once, here.
        unsafe { unsafe_libyaml::yaml_event_delete(&raw mut self.0) };
    }
}

/// What the library says, in our words.
#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "the library's enums are open; a scalar of an unknown style is not plain, an unknown event says nothing"
)]
fn convert(event: &unsafe_libyaml::yaml_event_t) -> Parsed {
    let kind = match event.type_ {
        unsafe_libyaml::YAML_STREAM_END_EVENT => return Parsed::StreamEnd,
        unsafe_libyaml::YAML_DOCUMENT_START_EVENT => EventKind::DocumentStart,
        unsafe_libyaml::YAML_DOCUMENT_END_EVENT => EventKind::DocumentEnd,
        unsafe_libyaml::YAML_ALIAS_EVENT => {
            // SAFETY: `alias` is the live field of the union in an alias event.
            let alias = unsafe { event.data.alias };
            EventKind::Alias {
                anchor: c_bytes(alias.anchor).unwrap_or_default(),
            }
        }
        unsafe_libyaml::YAML_SCALAR_EVENT => {
            // SAFETY: `scalar` is the live field of the union in a scalar event.
            let scalar = unsafe { event.data.scalar };
            EventKind::Scalar {
                properties: Properties {
                    anchor: c_bytes(scalar.anchor),
                    tag: c_bytes(scalar.tag),
                },
                value: sized_text(scalar.value, scalar.length),
                style: match scalar.style {
                    unsafe_libyaml::YAML_PLAIN_SCALAR_STYLE => Style::Plain,
                    unsafe_libyaml::YAML_LITERAL_SCALAR_STYLE => Style::Literal,
                    _ => Style::Other,
                },
            }
        }
        unsafe_libyaml::YAML_SEQUENCE_START_EVENT => {
            // SAFETY: `sequence_start` is the live field of the union in such an event.
            let start = unsafe { event.data.sequence_start };
            EventKind::SequenceStart {
                properties: Properties {
                    anchor: c_bytes(start.anchor),
                    tag: c_bytes(start.tag),
                },
                flow: start.style == unsafe_libyaml::YAML_FLOW_SEQUENCE_STYLE,
            }
        }
        unsafe_libyaml::YAML_SEQUENCE_END_EVENT => EventKind::SequenceEnd,
        unsafe_libyaml::YAML_MAPPING_START_EVENT => {
            // SAFETY: `mapping_start` is the live field of the union in such an event.
            let start = unsafe { event.data.mapping_start };
            EventKind::MappingStart {
                properties: Properties {
                    anchor: c_bytes(start.anchor),
                    tag: c_bytes(start.tag),
                },
                flow: start.style == unsafe_libyaml::YAML_FLOW_MAPPING_STYLE,
            }
        }
        unsafe_libyaml::YAML_MAPPING_END_EVENT => EventKind::MappingEnd,
        // The stream's start, and the empty event a parser gives after its end, which is not asked for.
        _ => return Parsed::StreamStart,
    };
    Parsed::Event(Event {
        kind,
        span: Span::new(narrow(event.start_mark.index), narrow(event.end_mark.index)),
    })
}

/// A copy of the NUL-terminated bytes of an event, `None` for a null pointer.
fn c_bytes(text: *const u8) -> Option<Box<[u8]>> {
    let text = NonNull::new(text.cast_mut())?;
    // SAFETY: anchors and tags of an event are NUL-terminated, and the caller still owns the event.
    let text = unsafe { CStr::from_ptr(text.as_ptr().cast()) };
    Some(text.to_bytes().into())
}

/// A copy of the bytes of a scalar, which the library has checked to be UTF-8.
fn sized_text(value: *const u8, length: u64) -> Box<str> {
    let Ok(length) = usize::try_from(length) else {
        return Box::default();
    };
    if value.is_null() {
        return Box::default();
    }
    // SAFETY: pointer and length are those of a scalar of an event the caller still owns.
    let bytes = unsafe { std::slice::from_raw_parts(value, length) };
    String::from_utf8_lossy(bytes).into()
}

/// A message of the library, which are all static.
fn static_text(text: *const core::ffi::c_char) -> Option<String> {
    if text.is_null() {
        return None;
    }
    // SAFETY: messages are NUL-terminated literals of the library.
    let text = unsafe { CStr::from_ptr(text) };
    Some(text.to_string_lossy().into_owned())
}

/// A byte offset of the library. Texts are shorter than 4 GiB (`gate`).
fn narrow(offset: u64) -> u32 {
    u32::try_from(offset).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &str, limit: u64) -> (Vec<Event>, Option<Failure>) {
        let mut events = Events::new(text, limit);
        let mut seen = Vec::new();
        loop {
            match events.next() {
                Ok(Some(event)) => seen.push(event),
                Ok(None) => return (seen, None),
                Err(failure) => {
                    assert_eq!(events.next(), Ok(None), "a failure is the last thing said");
                    return (seen, Some(failure));
                }
            }
        }
    }

    #[track_caller]
    fn check_scalars(text: &str, expected: &[(&str, &str)]) {
        let (events, failure) = all(text, 1000);
        assert_eq!(failure, None);
        let scalars: Vec<(&str, &str)> = events
            .iter()
            .filter_map(|event| {
                let EventKind::Scalar { value, .. } = &event.kind else {
                    return None;
                };
                Some((&**value, text.get(event.span.range()).expect("inside")))
            })
            .collect();
        assert_eq!(scalars, expected);
    }

    #[test]
    fn scalars_come_with_their_bytes() {
        check_scalars("a: 1\n", &[("a", "a"), ("1", "1")]);
        check_scalars("\u{feff}é: 'ü'\r\n", &[("é", "é"), ("ü", "'ü'")]);
        check_scalars("- &x !t \"\\x41\"", &[("A", "&x !t \"\\x41\"")]);
        check_scalars("", &[]);
        check_scalars("- 1\u{2028}- \u{85}  2", &[("1", "1"), ("2", "2")]);
    }

    #[test]
    fn a_text_without_a_document_has_no_events() {
        assert_eq!(all("# nothing\n", 10), (Vec::new(), None));
    }

    #[test]
    fn nesting_stops_one_past_the_limit() {
        let deepest = "[".repeat(MAX_DEPTH) + &"]".repeat(MAX_DEPTH);
        assert_eq!(all(&deepest, 1000).1, None);
        let deeper = "[".repeat(50_000);
        let (events, failure) = all(&deeper, 1000);
        assert_eq!(failure, Some(Failure::TooDeep(Span::new(128, 129))));
        assert_eq!(events.len(), 1 + MAX_DEPTH);
    }

    #[test]
    fn events_stop_one_past_the_limit() {
        assert_eq!(all("[a, b]", 6).1, None);
        assert!(matches!(all("[a, b]", 5).1, Some(Failure::TooMany(_))));
        assert!(matches!(all("a", 0).1, Some(Failure::TooMany(_))));
    }

    #[test]
    fn problems_come_with_their_byte() {
        let (_, failure) = all("\u{feff}a: [1\nb: 2", 1000);
        let Some(Failure::Syntax { at, context, .. }) = failure else {
            panic!("a syntax failure");
        };
        assert_eq!((at, context), (10, Some(6)));
    }
}
