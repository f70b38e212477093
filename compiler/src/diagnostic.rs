//! A fault of a policy file as a value: what, where, and what to do about it.

use crate::codes::Code;
use crate::span::Span;

/// How much a diagnostic weighs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// The file is refused.
    Error,
    /// The file is accepted; somebody should look.
    Warning,
    /// For information only; no flag turns it into a failure.
    Note,
}

impl Severity {
    /// The word of every output format.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Note => "note",
        }
    }
}

/// A second place that explains the first, such as the earlier one of two that disagree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Related {
    /// What stands there, in the same style as [`Diagnostic::message`].
    pub message: String,
    /// Where.
    pub span: Span,
}

/// One fault, warning or note about a policy file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// Its row of the catalogue.
    pub code: &'static Code,
    /// The row's severity, but for plugin options, where the plugin says.
    pub severity: Severity,
    /// Lower case, no full stop, the file's words in backticks, no secret.
    pub message: String,
    /// The field as `policies[1].selector.token.key`; empty for the file as a whole.
    pub field: String,
    /// The offending text.
    pub span: Span,
    /// Second places, in reading order of the explanation.
    pub related: Vec<Related>,
    /// What to do.
    pub help: Option<String>,
}

impl Diagnostic {
    /// A diagnostic of `code` about `field` at `span`.
    #[must_use]
    pub fn new(
        code: &'static Code,
        field: impl Into<String>,
        span: Span,
        message: impl Into<String>,
    ) -> Self {
        Self {
            code,
            severity: code.severity,
            message: message.into(),
            field: field.into(),
            span,
            related: Vec::new(),
            help: None,
        }
    }

    /// The same with a second place.
    #[must_use]
    pub fn with_related(mut self, span: Span, message: impl Into<String>) -> Self {
        self.related.push(Related {
            message: message.into(),
            span,
        });
        self
    }

    /// The same with what to do.
    #[must_use]
    pub fn with_help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// Whether it refuses the file.
    #[must_use]
    pub fn is_error(&self) -> bool {
        self.severity == Severity::Error
    }
}

/// Puts diagnostics into the order every output uses: by place, then code, then field and message. The same input gives the
/// same bytes out.
pub fn sort(diagnostics: &mut Vec<Diagnostic>) {
    diagnostics.sort_by(|a, b| {
        (a.span.start, a.code.id, &a.field, &a.message, a.span.end).cmp(&(
            b.span.start,
            b.code.id,
            &b.field,
            &b.message,
            b.span.end,
        ))
    });
    diagnostics.dedup();
}
