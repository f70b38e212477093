//! The backend and its local fallback, held against the kinds there are.

use std::num::NonZeroU64;
use std::path::Path;

use serde_json::{Map, Value};

use super::{Field, Findings, fault_of, redis_url};
use crate::backend_kind::{
    BackendKind, BackendKinds, KnownKinds, OptionFault, UNKNOWN_OPTION, Unresolved,
};
use crate::codes::{self, Code};
use crate::diagnostic::Diagnostic;
use crate::settings::{
    BackendPlace, BackendSettings, DEFAULT_COMMAND_TIMEOUT_MS, DEFAULT_CONNECT_TIMEOUT_MS,
    DEFAULT_FALLBACK_KEY_PREFIX, DEFAULT_KEY_PREFIX, DEFAULT_MAX_ENTRIES, DEFAULT_MAX_INFLIGHT,
    FallbackSettings, IN_MEMORY, REDIS,
};
use crate::span::Span;
use crate::syntax::quote::{listed, quote, visible};
use crate::syntax::raw::{Given, RawBackend, RawFallback, RawOption, RawQuota, Spanned};
use crate::syntax::{backend_fields, nearest, nearest_by_spelling};

/// How many options one message lists.
const MOST_LISTED: usize = 8;
const URL: &str = "url";
const MAX_ENTRIES: &str = "max_entries";
const CONNECT_TIMEOUT: &str = "connect_timeout_ms";
const COMMAND_TIMEOUT: &str = "command_timeout_ms";
const MAX_INFLIGHT: &str = "max_inflight";
const KINDS_HELP: &str = "write `kind: in_memory`, `kind: redis` or the kind of a plugin";

/// What was found of the backend and the fallback.
pub(super) struct Checked<'a> {
    /// `None` when a part was reported.
    pub(super) settings: Option<BackendSettings>,
    /// `Some(None)` where there is none; `None` when a part was reported.
    pub(super) fallback: Option<Option<FallbackSettings>>,
    /// What the backend can count; `None` when there is no bound, or the kind was reported.
    pub(super) ceiling: Option<Ceiling<'a>>,
}

/// The largest limit a backend can count.
pub(super) struct Ceiling<'a> {
    pub(super) max_requests: u64,
    pub(super) kind: &'a str,
    /// Where the file names the kind.
    pub(super) place: Span,
}

/// Reading takes a field as faulty where another one was surely meant to be it. In `backend` that other one is reported only
/// here, if at all, since it may be an option of the plugin's: the field counts as left out.
pub(super) fn take_back_guesses(raw: &mut RawQuota, reported: &[Diagnostic]) {
    let root = Field::root(raw.path);
    let backend = root.field("backend");
    let Given::Value { value, .. } = &mut raw.backend else {
        return;
    };
    let raw = &mut value.value;
    let guessed: Vec<&str> = backend_fields()
        .filter(|name| {
            let field = backend.field(name).to_string();
            reported.iter().all(|fault| fault.field != field)
        })
        .collect();
    for option in &raw.other {
        let name = nearest(&option.name, backend_fields());
        match name.filter(|name| guessed.contains(name)).unwrap_or("") {
            "kind" => take_back(&mut raw.kind),
            "key_prefix" => take_back(&mut raw.key_prefix),
            "plugin" => take_back(&mut raw.plugin),
            "plugin_sha256" => take_back(&mut raw.plugin_sha256),
            URL => take_back(&mut raw.url),
            MAX_ENTRIES => take_back(&mut raw.max_entries),
            CONNECT_TIMEOUT => take_back(&mut raw.connect_timeout_ms),
            COMMAND_TIMEOUT => take_back(&mut raw.command_timeout_ms),
            MAX_INFLIGHT => take_back(&mut raw.max_inflight),
            _ => {}
        }
    }
}

fn take_back<T>(given: &mut Given<T>) {
    if given.is_faulty() {
        *given = Given::Absent;
    }
}

/// Checks `backend` and `local_fallback` of `raw`.
pub(super) fn check<'a>(
    raw: &'a RawQuota,
    root: &Field<'_>,
    kinds: &dyn BackendKinds,
    findings: &mut Findings<'_>,
) -> Checked<'a> {
    let field = root.field("backend");
    let (settings, kind) = match &raw.backend {
        Given::Absent => (Some(BackendSettings::default()), Some(Kind::default())),
        Given::Faulty => (None, None),
        Given::Value { value, .. } => {
            let mut checker = BackendChecker {
                raw: &value.value,
                place: findings.first_line(value.span),
                field: &field,
                findings,
            };
            let (pin, kind) = checker.check_kind(raw, kinds);
            (checker.check_settings(pin, kind.as_ref()), kind)
        }
    };
    let fallback = check_fallback(raw, kind.as_ref(), root, findings);
    let ceiling = kind.and_then(|kind| {
        (kind.max_requests < u64::MAX).then_some(Ceiling {
            max_requests: kind.max_requests,
            kind: kind.name,
            place: kind.place?,
        })
    });
    Checked {
        settings,
        fallback,
        ceiling,
    }
}

/// The kind of the backend, as far as it is known.
struct Kind<'a> {
    name: &'a str,
    /// Where the file names it; `None` for the default.
    place: Option<Span>,
    remote: bool,
    max_requests: u64,
    options: Options,
}

/// What becomes of the plugin's own options.
enum Options {
    Checked(Box<dyn crate::backend_kind::OptionCheck>),
    /// Nobody can check them; a note says so, with the reason.
    Unchecked(Option<String>),
    /// What could be said of them was said of the kind.
    Reported,
}

impl Default for Kind<'_> {
    /// The kind of a file without `backend`.
    fn default() -> Self {
        Self::of(IN_MEMORY, None, KnownKinds::in_memory())
    }
}

impl<'a> Kind<'a> {
    fn of(name: &'a str, place: Option<Span>, kind: BackendKind) -> Self {
        Self {
            name,
            place,
            remote: kind.remote,
            max_requests: kind.max_requests,
            options: match kind.options {
                Some(check) => Options::Checked(check),
                None => Options::Unchecked(kind.unchecked_reason),
            },
        }
    }

    /// A kind whose plugin was reported: what the contract itself says of it, `None` for a third party's.
    fn of_contract(name: &'a str, place: Span) -> Option<Self> {
        let kind = match name {
            IN_MEMORY => KnownKinds::in_memory(),
            REDIS => KnownKinds::redis(String::new()),
            _ => return None,
        };
        Some(Self {
            options: Options::Reported,
            ..Self::of(name, Some(place), kind)
        })
    }
}

/// The plugin a file names and pins.
struct Pin<'a> {
    plugin: Option<&'a str>,
    sha256: Option<[u8; 32]>,
}

struct BackendChecker<'a, 'c, 't> {
    raw: &'a RawBackend,
    /// The first line of the object.
    place: Span,
    field: &'c Field<'c>,
    findings: &'c mut Findings<'t>,
}

impl<'a> BackendChecker<'a, '_, '_> {
    /// The plugin and the kind, each `None` when it was reported.
    fn check_kind(
        &mut self,
        quota: &RawQuota,
        kinds: &dyn BackendKinds,
    ) -> (Option<Pin<'a>>, Option<Kind<'a>>) {
        let plugin = self.check_plugin();
        let sha256 = self.check_sha256();
        let pin = plugin
            .zip(sha256)
            .map(|(plugin, sha256)| Pin { plugin, sha256 });
        let kind = match &self.raw.kind {
            Given::Faulty => None,
            Given::Absent => {
                let meant = self.meant_by("kind");
                let fault = Diagnostic::new(
                    &codes::BACKEND_WITHOUT_KIND,
                    self.field.field("kind").to_string(),
                    meant.map_or(self.place, |option| option.key),
                    "backend names no `kind`",
                );
                self.findings.report(fault.with_help(meant.map_or_else(
                    || KINDS_HELP.to_owned(),
                    |option| did_you_mean("kind", option),
                )));
                None
            }
            Given::Value { value, .. } => self.resolve(value, pin.as_ref(), quota, kinds),
        };
        (pin, kind)
    }

    fn resolve(
        &mut self,
        given: &'a Spanned<String>,
        pin: Option<&Pin<'_>>,
        quota: &RawQuota,
        kinds: &dyn BackendKinds,
    ) -> Option<Kind<'a>> {
        let name = given.value.as_str();
        if name.trim().is_empty() {
            let fault = fault_of(
                &codes::UNKNOWN_BACKEND_KIND,
                &self.field.field("kind"),
                given,
                "backend kind is blank",
            );
            self.findings.report(fault.with_help(KINDS_HELP));
            return None;
        }
        if !is_kind_name(name) {
            let help = nearest_by_spelling(name, [IN_MEMORY, REDIS]).map_or_else(
                || {
                    "a kind is a lower-case letter and up to 31 lower-case letters, digits and `_`"
                        .to_owned()
                },
                |nearest| format!("did you mean `{nearest}`?"),
            );
            self.report_unknown_kind(given, help);
            return None;
        }
        // A plugin at fault was reported: what it would say of its kind is not known.
        let Some(pin) = pin else {
            return Kind::of_contract(name, given.span);
        };
        match kinds.resolve(name, pin.plugin, pin.sha256.as_ref()) {
            Ok(kind) => Some(Kind::of(name, Some(given.span), kind)),
            Err(Unresolved::Unknown { known, searched }) => {
                let known = known.iter().map(String::as_str);
                let mut help = nearest_by_spelling(name, known.clone())
                    .map_or_else(String::new, |nearest| format!("did you mean `{nearest}`? "));
                help.push_str(&format!("known kinds are {}", listed(known)));
                if !searched.is_empty() {
                    let searched = searched.iter().map(String::as_str);
                    help.push_str(&format!(
                        "; plugins were looked for in {}",
                        listed(searched)
                    ));
                }
                self.report_unknown_kind(given, help);
                None
            }
            Err(Unresolved::Refused { reason }) => {
                let (place, field) = match self.raw.plugin.value() {
                    Some(plugin) => (plugin, "plugin"),
                    None => (given, "kind"),
                };
                let fault = fault_of(
                    &codes::PLUGIN_REFUSED,
                    &self.field.field(field),
                    place,
                    format!("backend `{name}` cannot be used: {}", one_line(&reason)),
                );
                self.findings.report(fault.with_help(
                    "install a plugin this version can load, or name another one with `plugin`",
                ));
                Kind::of_contract(name, given.span)
            }
            Err(Unresolved::NotAsked) => {
                let note = fault_of(
                    &codes::OPTIONS_UNCHECKED,
                    &self.field.field("kind"),
                    given,
                    format!(
                        "backend `{name}` and its options were not checked: no plugin is loaded"
                    ),
                );
                self.findings
                    .report(note.with_help("check again with plugins to have them checked"));
                Some(Kind {
                    name,
                    place: Some(given.span),
                    remote: !self.looks_local(quota),
                    max_requests: u64::MAX,
                    options: Options::Reported,
                })
            }
        }
    }

    /// The option that was reported to be the missing `url`, misspelt.
    fn misspelt_url(&self, kind: &Kind<'_>) -> Option<&'a RawOption> {
        (kind.name == REDIS && self.raw.url.is_absent())
            .then(|| self.meant_by(URL))
            .flatten()
    }

    /// The option that was surely meant to be the field `name`.
    fn meant_by(&self, name: &'static str) -> Option<&'a RawOption> {
        self.raw
            .other
            .iter()
            .find(|option| nearest(&option.name, [name]).is_some())
    }

    fn report_unknown_kind(&mut self, given: &Spanned<String>, help: String) {
        let fault = fault_of(
            &codes::UNKNOWN_BACKEND_KIND,
            &self.field.field("kind"),
            given,
            format!("unknown backend kind {}", quote(&given.value)),
        );
        self.findings.report(fault.with_help(help));
    }

    /// Whether the fields of a kind taken on trust are those of a backend in this process: it bounds its buckets, and has
    /// nothing a remote one has.
    fn looks_local(&self, quota: &RawQuota) -> bool {
        let raw = self.raw;
        let remote_fields = [
            &raw.connect_timeout_ms,
            &raw.command_timeout_ms,
            &raw.max_inflight,
        ];
        !raw.max_entries.is_absent()
            && remote_fields.iter().all(|given| given.is_absent())
            && quota.local_fallback.is_absent()
    }

    /// `backend.plugin`, `Some(None)` where the file names none; `None` when it was reported.
    fn check_plugin(&mut self) -> Option<Option<&'a str>> {
        let given = match &self.raw.plugin {
            Given::Absent => return Some(None),
            Given::Faulty => return None,
            Given::Value { value, .. } => value,
        };
        let plugin = given.value.trim();
        if is_plugin(plugin) {
            return Some(Some(plugin));
        }
        let message = if plugin.is_empty() {
            "plugin is blank".to_owned()
        } else {
            format!(
                "plugin {} is neither a file name nor an absolute path",
                quote(plugin)
            )
        };
        let fault = fault_of(
            &codes::INVALID_PLUGIN,
            &self.field.field("plugin"),
            given,
            message,
        );
        self.findings.report(fault.with_help(
            "give the library's file name, which is looked for in the plugin folders, or its absolute path",
        ));
        None
    }

    /// `backend.plugin_sha256`, `Some(None)` where the file pins nothing; `None` when it was reported.
    fn check_sha256(&mut self) -> Option<Option<[u8; 32]>> {
        let given = match &self.raw.plugin_sha256 {
            Given::Absent => return Some(None),
            Given::Faulty => return None,
            Given::Value { value, .. } => value,
        };
        let digits = given.value.trim();
        let sha256 = sha256(digits);
        if sha256.is_none() {
            let fault = fault_of(
                &codes::INVALID_PLUGIN_SHA256,
                &self.field.field("plugin_sha256"),
                given,
                format!("{} is not a SHA-256", quote(digits)),
            );
            self.findings.report(fault.with_help(
                "give the 64 hexadecimal digits that `sha256sum` prints for the library",
            ));
        }
        sha256.map(Some)
    }

    /// The settings, `None` when a part was reported.
    fn check_settings(
        &mut self,
        pin: Option<Pin<'a>>,
        kind: Option<&Kind<'_>>,
    ) -> Option<BackendSettings> {
        let key_prefix = check_prefix(
            &self.raw.key_prefix,
            DEFAULT_KEY_PREFIX,
            &codes::BLANK_KEY_PREFIX,
            self.field,
            self.findings,
        );
        let place = self.check_place(kind);
        let url = kind.map(|kind| self.check_url(kind));
        let options = kind.map(|kind| self.check_options(kind, url == Some(UrlState::Sound)));
        let pin = pin?;
        Some(BackendSettings {
            kind: kind?.name.into(),
            key_prefix: key_prefix?,
            place: place?,
            plugin: pin.plugin.map(Into::into),
            plugin_sha256: pin.sha256,
            options: options?,
        })
    }

    /// What depends on where the counters live. Values are checked where the kind is not known, too.
    fn check_place(&mut self, kind: Option<&Kind<'_>>) -> Option<BackendPlace> {
        let raw = self.raw;
        let remote = kind.map(|kind| kind.remote);
        if let Some(kind) = kind {
            let illegal: &[_] = if kind.remote {
                &[(MAX_ENTRIES, &raw.max_entries)]
            } else {
                &[
                    (CONNECT_TIMEOUT, &raw.connect_timeout_ms),
                    (COMMAND_TIMEOUT, &raw.command_timeout_ms),
                    (MAX_INFLIGHT, &raw.max_inflight),
                ]
            };
            for (name, given) in illegal {
                self.report_illegal(name, given, kind);
            }
        }
        let local = (remote != Some(true)).then(|| {
            self.check_positive(
                MAX_ENTRIES,
                &raw.max_entries,
                DEFAULT_MAX_ENTRIES,
                &codes::ZERO_MAX_ENTRIES,
                "backend of 0 entries holds no buckets",
            )
        });
        let remote_fields = (remote != Some(false)).then(|| {
            let connect = self.check_positive(
                CONNECT_TIMEOUT,
                &raw.connect_timeout_ms,
                DEFAULT_CONNECT_TIMEOUT_MS,
                &codes::ZERO_CONNECT_TIMEOUT,
                "connect timeout of 0 ms leaves no time to connect",
            );
            let command = self.check_positive(
                COMMAND_TIMEOUT,
                &raw.command_timeout_ms,
                DEFAULT_COMMAND_TIMEOUT_MS,
                &codes::ZERO_COMMAND_TIMEOUT,
                "command timeout of 0 ms leaves no time to answer",
            );
            let inflight = self.check_positive(
                MAX_INFLIGHT,
                &raw.max_inflight,
                DEFAULT_MAX_INFLIGHT,
                &codes::ZERO_MAX_INFLIGHT,
                "backend with room for 0 requests lets none in",
            );
            (connect, command, inflight)
        });
        match (local, remote_fields) {
            (Some(max_entries), None) => Some(BackendPlace::Local {
                max_entries: max_entries?,
            }),
            (None, Some((connect, command, inflight))) => Some(BackendPlace::Remote {
                connect_timeout_ms: connect?,
                command_timeout_ms: command?,
                max_inflight: inflight?,
            }),
            (Some(_), Some(_)) | (None, None) => None,
        }
    }

    /// Reports a field of the contract that the kind does not take.
    fn report_illegal<T>(&mut self, name: &str, given: &Given<T>, kind: &Kind<'_>) {
        let Given::Value { key, .. } = given else {
            return;
        };
        let help = match name {
            MAX_ENTRIES => format!(
                "`{MAX_ENTRIES}` bounds counters of this process, such as those of kind `{IN_MEMORY}`; remove it"
            ),
            URL => format!("`{URL}` belongs to kind `{REDIS}`; remove it"),
            _ => format!("`{name}` belongs to remote kinds such as `{REDIS}`; remove it"),
        };
        let fault = Diagnostic::new(
            &codes::UNKNOWN_FIELD,
            self.field.field(name).to_string(),
            *key,
            format!("backend kind `{}` has no field `{name}`", kind.name),
        );
        self.findings.report(fault.with_help(help));
    }

    fn check_positive(
        &mut self,
        name: &str,
        given: &Given<u64>,
        default: NonZeroU64,
        code: &'static Code,
        message: &str,
    ) -> Option<NonZeroU64> {
        let field = self.field.field(name);
        let help = format!("give a number of at least 1, or leave `{name}` out for {default}");
        check_positive(
            &field,
            given,
            Some(default),
            code,
            message,
            help,
            self.findings,
        )
    }

    fn check_url(&mut self, kind: &Kind<'_>) -> UrlState {
        if kind.name == IN_MEMORY {
            self.report_illegal(URL, &self.raw.url, kind);
        }
        let given = match &self.raw.url {
            Given::Absent if kind.name == REDIS => {
                let meant = self.misspelt_url(kind);
                let fault = Diagnostic::new(
                    &codes::URL_MISSING,
                    self.field.field(URL).to_string(),
                    meant.map_or(self.place, |option| option.key),
                    "backend `redis` has no `url`",
                );
                self.findings.report(fault.with_help(meant.map_or_else(
                    || "add one, such as `url: redis://localhost:6379/0`".to_owned(),
                    |option| did_you_mean(URL, option),
                )));
                return UrlState::Reported;
            }
            Given::Absent => return UrlState::Sound,
            Given::Faulty => return UrlState::Reported,
            Given::Value { value, .. } => value,
        };
        if kind.name != REDIS {
            return UrlState::Sound;
        }
        let url = given.value.trim();
        let field = self.field.field(URL);
        let fault = if url.is_empty() {
            let fault = fault_of(&codes::BLANK_URL, &field, given, "backend URL is blank");
            fault.with_help("give the server's URL, such as `redis://localhost:6379/0`")
        } else if let Some(fault) = redis_url::fault(url) {
            fault_of(&codes::INVALID_URL, &field, given, fault.message).with_help(fault.help)
        } else {
            return UrlState::Sound;
        };
        self.findings.report(fault);
        UrlState::Reported
    }

    /// The options as the plugin is handed them, `url` included.
    fn check_options(&mut self, kind: &Kind<'_>, url_is_sound: bool) -> Map<String, Value> {
        let raw = self.raw;
        if kind.name == IN_MEMORY {
            for option in &raw.other {
                self.report_unknown_option(option, kind);
            }
            return Map::new();
        }
        let mut options = Map::new();
        if let Some(url) = raw.url.value() {
            options.insert(URL.to_owned(), Value::String(url.value.trim().to_owned()));
        }
        options.extend(raw.options());
        match &kind.options {
            Options::Reported => {}
            Options::Unchecked(reason) => self.note_unchecked(kind, reason.as_deref()),
            Options::Checked(check) => {
                let value = Value::Object(options.clone());
                let misspelt = self.misspelt_url(kind).map(|option| option.name.as_str());
                for fault in check.check(&value) {
                    // Where the URL was reported, the plugin finds it wrong or, at the top, missing, or does not know
                    // what was meant to be it: nothing new.
                    let known = matches!(fault.pointer.as_str(), "" | "/url")
                        || misspelt
                            .is_some_and(|name| fault.pointer.strip_prefix('/') == Some(name));
                    if url_is_sound || !known {
                        self.report_option(&fault, &value, kind);
                    }
                }
            }
        }
        options
    }

    /// Reports a field that neither the contract nor the kind knows.
    fn report_unknown_option(&mut self, option: &RawOption, kind: &Kind<'_>) {
        let takes = backend_fields().filter(|name| {
            !matches!(
                *name,
                URL | CONNECT_TIMEOUT | COMMAND_TIMEOUT | MAX_INFLIGHT
            )
        });
        let help = nearest(&option.name, takes.clone()).map_or_else(
            || format!("`{}` takes {}", kind.name, listed(takes)),
            |nearest| format!("did you mean `{nearest}`?"),
        );
        let fault = Diagnostic::new(
            &codes::UNKNOWN_FIELD,
            self.field.field(&option.name).to_string(),
            option.key,
            format!(
                "backend kind `{}` has no field {}",
                kind.name,
                quote(&option.name)
            ),
        );
        self.findings.report(fault.with_help(help));
    }

    /// Says that the plugin's own options were not checked, where there are any.
    fn note_unchecked(&mut self, kind: &Kind<'_>, reason: Option<&str>) {
        // The compiler checks the URL of `redis` itself; that of another kind is the plugin's.
        let own_url = match &self.raw.url {
            Given::Value { key, .. } if kind.name != REDIS => Some((URL, *key)),
            Given::Value { .. } | Given::Absent | Given::Faulty => None,
        };
        let misspelt = self.misspelt_url(kind).map(|option| option.key);
        let others = self
            .raw
            .other
            .iter()
            .filter(|other| Some(other.key) != misspelt)
            .map(|other| (other.name.as_str(), other.key));
        let mut own: Vec<_> = own_url.into_iter().chain(others).collect();
        own.sort_by_key(|(_, key)| key.start);
        let Some((first, place)) = own.first().copied() else {
            return;
        };
        let mut help = format!("install the plugin of `{}` to have them checked", kind.name);
        let more = own.len().saturating_sub(MOST_LISTED);
        own.truncate(MOST_LISTED);
        for (name, _) in &own {
            if let Some(nearest) = nearest_by_spelling(name, backend_fields()) {
                help.push_str(&format!("; did you mean `{nearest}` by {}?", quote(name)));
            }
        }
        let more = (more > 0).then(|| format!("{more} more"));
        let names = own.iter().map(|(name, _)| quote(name));
        let mut message = format!(
            "options of backend `{}` were not checked: {}",
            kind.name,
            names.chain(more).collect::<Vec<_>>().join(", ")
        );
        if let Some(reason) = reason {
            message.push_str(&format!(" ({})", one_line(reason)));
        }
        let note = Diagnostic::new(
            &codes::OPTIONS_UNCHECKED,
            self.field.field(first).to_string(),
            place,
            message,
        );
        self.findings.report(note.with_help(help));
    }

    /// Reports what a plugin found of its options, at the nearest part of the file.
    fn report_option(&mut self, fault: &OptionFault, options: &Value, kind: &Kind<'_>) {
        let path = path_of(&fault.pointer, options);
        let option = visible(path.trim_start_matches('.'));
        let said = one_line(&fault.message);
        let last = unescaped(fault.pointer.rsplit('/').next().unwrap_or_default());
        let subject = if option.is_empty() || said.contains(&format!("`{last}`")) {
            String::new()
        } else {
            format!("option `{option}`: ")
        };
        let from = if fault.code.is_empty() {
            kind.name.to_owned()
        } else {
            format!("{}: {}", kind.name, one_line(&fault.code))
        };
        let unknown = self
            .raw
            .other
            .iter()
            .find(|option| fault.code == UNKNOWN_OPTION && path == format!(".{}", option.name));
        let mut diagnostic = Diagnostic::new(
            &codes::PLUGIN_OPTION,
            format!("{}{}", self.field, visible(&path)),
            unknown.map_or_else(
                || self.option_place(&fault.pointer, kind),
                |option| option.key,
            ),
            format!("{subject}{said} ({from})"),
        );
        diagnostic.severity = fault.severity;
        // The plugin knows its own options only.
        let meant = unknown.and_then(|option| nearest_by_spelling(&option.name, backend_fields()));
        diagnostic.help = match meant {
            Some(meant) => Some(format!("did you mean `{meant}`?")),
            None => fault.help.as_deref().map(one_line),
        };
        self.findings.report(diagnostic);
    }

    /// The place of the part at `pointer`, or of the nearest part around it.
    fn option_place(&self, pointer: &str, kind: &Kind<'_>) -> Span {
        let mut tokens = pointer.split('/').skip(1);
        let name = tokens.next().map(unescaped);
        let option = name
            .as_ref()
            .and_then(|name| self.raw.other.iter().find(|option| option.name == *name));
        let Some(option) = option else {
            let url = self
                .raw
                .url
                .value()
                .filter(|_| name.as_deref() == Some(URL));
            return url.map_or_else(|| kind.place.unwrap_or(self.place), |url| url.span);
        };
        let mut inner: String = tokens.map(|token| format!("/{token}")).collect();
        loop {
            if let Some((_, place)) = option.places.iter().find(|(at, _)| *at == inner) {
                return self.findings.first_line(*place);
            }
            match inner.rfind('/') {
                Some(parent) => inner.truncate(parent),
                None => return self.findings.first_line(option.value.span),
            }
        }
    }
}

/// Whether anything was said of `url`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum UrlState {
    /// Right, or not there and not needed.
    Sound,
    Reported,
}

fn check_fallback(
    raw: &RawQuota,
    kind: Option<&Kind<'_>>,
    root: &Field<'_>,
    findings: &mut Findings<'_>,
) -> Option<Option<FallbackSettings>> {
    let (key, given) = match &raw.local_fallback {
        Given::Absent => return Some(None),
        Given::Faulty => return None,
        Given::Value { key, value } => (*key, &value.value),
    };
    let field = root.field("local_fallback");
    let key_prefix = check_prefix(
        &given.key_prefix,
        DEFAULT_FALLBACK_KEY_PREFIX,
        &codes::BLANK_FALLBACK_PREFIX,
        &field,
        findings,
    );
    let max_entries = check_positive(
        &field.field(MAX_ENTRIES),
        &given.max_entries,
        None,
        &codes::ZERO_FALLBACK_ENTRIES,
        "local fallback of 0 entries holds no buckets",
        "give a number of at least 1, or remove `local_fallback`".to_owned(),
        findings,
    );
    if let Some(kind) = kind.filter(|kind| !kind.remote) {
        let default = if kind.place.is_none() {
            "the default "
        } else {
            ""
        };
        let mut fault = Diagnostic::new(
            &codes::FALLBACK_WITHOUT_REMOTE,
            field.to_string(),
            key,
            format!(
                "local fallback stands beside {default}backend `{}`, which is not remote",
                kind.name
            ),
        );
        if let Some(place) = kind.place {
            fault = fault.with_related(
                place,
                format!("backend `{}` keeps its counters in this process", kind.name),
            );
        }
        findings.report(
            fault.with_help("remove `local_fallback`, or use a remote backend such as `redis`"),
        );
        return None;
    }
    warn_of_shared_prefix(raw, given, key, &field, findings);
    Some(Some(FallbackSettings {
        key_prefix: key_prefix?,
        max_entries: max_entries?,
    }))
}

/// Warns where backend and fallback keep their counters under one prefix, given or by default.
fn warn_of_shared_prefix(
    raw: &RawQuota,
    fallback: &RawFallback,
    key: Span,
    field: &Field<'_>,
    findings: &mut Findings<'_>,
) {
    let Given::Value {
        key: backend_key,
        value: backend,
    } = &raw.backend
    else {
        return;
    };
    let of_backend = &backend.value.key_prefix;
    let of_fallback = &fallback.key_prefix;
    let effective = |given: &Given<String>, default: &'static str| match given {
        Given::Absent => Some(default.to_owned()),
        Given::Faulty => None,
        Given::Value { value, .. } => Some(value.value.trim().to_owned()),
    };
    let prefix = effective(of_fallback, DEFAULT_FALLBACK_KEY_PREFIX);
    let Some(prefix) = prefix.filter(|prefix| !prefix.is_empty()) else {
        return;
    };
    if effective(of_backend, DEFAULT_KEY_PREFIX).as_ref() != Some(&prefix) {
        return;
    }
    let place = of_fallback.value().map_or(key, |given| given.span);
    let (backend_place, backend_prefix) = match of_backend.value() {
        Some(given) => (given.span, "the backend's key prefix"),
        None => (
            *backend_key,
            "the backend's key prefix is this one by default",
        ),
    };
    let warning = Diagnostic::new(
        &codes::FALLBACK_PREFIX_SHARED,
        field.field("key_prefix").to_string(),
        place,
        format!(
            "local fallback and backend share the key prefix {}",
            quote(&prefix)
        ),
    )
    .with_related(backend_place, backend_prefix);
    findings.report(warning.with_help("give the fallback a key prefix of its own"));
}

fn did_you_mean(name: &str, option: &RawOption) -> String {
    format!("did you mean `{name}` by {}?", quote(&option.name))
}

/// A key prefix, trimmed; `None` when it was reported.
fn check_prefix(
    given: &Given<String>,
    default: &str,
    code: &'static Code,
    object: &Field<'_>,
    findings: &mut Findings<'_>,
) -> Option<Box<str>> {
    let given = match given {
        Given::Absent => return Some(default.into()),
        Given::Faulty => return None,
        Given::Value { value, .. } => value,
    };
    let prefix = given.value.trim();
    if prefix.is_empty() {
        let fault = fault_of(
            code,
            &object.field("key_prefix"),
            given,
            "key prefix is blank",
        );
        findings.report(fault.with_help(format!(
            "give a key prefix, or leave `key_prefix` out for `{default}`"
        )));
        return None;
    }
    Some(prefix.into())
}

/// A positive number, `default` where it is left out; `None` when it was reported.
fn check_positive(
    field: &Field<'_>,
    given: &Given<u64>,
    default: Option<NonZeroU64>,
    code: &'static Code,
    message: &str,
    help: String,
    findings: &mut Findings<'_>,
) -> Option<NonZeroU64> {
    let given = match given {
        Given::Absent => return default,
        Given::Faulty => return None,
        Given::Value { value, .. } => value,
    };
    let number = NonZeroU64::new(given.value);
    if number.is_none() {
        let fault = fault_of(code, field, given, message);
        findings.report(fault.with_help(help));
    }
    number
}

/// `[a-z][a-z0-9_]{0,31}`, the names a plugin may declare.
fn is_kind_name(name: &str) -> bool {
    name.len() <= 32
        && name.starts_with(|first: char| first.is_ascii_lowercase())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
}

/// Whether `plugin` is the name of a file, without any folder, or an absolute path.
fn is_plugin(plugin: &str) -> bool {
    let path = Path::new(plugin);
    !plugin.contains('\0')
        && path.file_name().is_some()
        && !plugin.ends_with('/')
        && (path.is_absolute() || path.components().count() == 1 && !plugin.contains(['/', '\\']))
}

/// The 32 bytes that 64 hexadecimal digits spell.
fn sha256(digits: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    let (pairs, rest) = digits.as_bytes().as_chunks::<2>();
    if pairs.len() != bytes.len() || !rest.is_empty() {
        return None;
    }
    for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
        let digit = |digit: u8| char::from(digit).to_digit(16);
        *byte = u8::try_from(digit(*high)? * 16 + digit(*low)?).ok()?;
    }
    Some(bytes)
}

/// What a plugin or a loader says, on one line.
fn one_line(text: &str) -> String {
    let lines = text.split(char::is_control).map(str::trim);
    lines
        .filter(|line| !line.is_empty())
        .collect::<Vec<_>>()
        .join(" ")
}

/// A token of an RFC 6901 pointer as the key it stands for.
fn unescaped(token: &str) -> String {
    token.replace("~1", "/").replace("~0", "~")
}

/// The field path that `pointer` into `options` stands for, as `.tls.files[0]`.
fn path_of(pointer: &str, options: &Value) -> String {
    let mut path = String::new();
    let mut value = Some(options);
    for token in pointer.split('/').skip(1) {
        let key = unescaped(token);
        if let Some(Value::Array(items)) = value {
            path.push_str(&format!("[{key}]"));
            value = key.parse::<usize>().ok().and_then(|index| items.get(index));
        } else {
            path.push_str(&format!(".{key}"));
            value = value.and_then(|value| value.get(&key));
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::Limits;
    use crate::backend_kind::OptionCheck;
    use crate::check::check_text;
    use crate::check::tests::{check, fault, places, sound};
    use crate::diagnostic::Severity;

    /// A world of plugins: `redis` and `near` (kept in this process) check their options, `refused` cannot be loaded.
    struct Plugins;

    impl BackendKinds for Plugins {
        fn resolve(
            &self,
            kind: &str,
            plugin: Option<&str>,
            sha256: Option<&[u8; 32]>,
        ) -> Result<BackendKind, Unresolved> {
            match kind {
                "redis" | "near" | "far" => Ok(BackendKind {
                    name: kind.into(),
                    remote: kind != "near",
                    max_requests: 1000,
                    options: Some(Box::new(Options)),
                    unchecked_reason: None,
                }),
                "refused" => Err(Unresolved::Refused {
                    reason: format!("{}:\nbad ABI", plugin.unwrap_or("libfar.so")),
                }),
                "pinned" if sha256 == Some(&[0xab; 32]) => Ok(KnownKinds::in_memory()),
                "trusted" => Err(Unresolved::NotAsked),
                _ => Err(Unresolved::Unknown {
                    known: vec!["in_memory".to_owned(), "near".to_owned()],
                    searched: vec!["/plugins".to_owned()],
                }),
            }
        }
    }

    /// Finds fault with each string `bad`, and with a missing `must`; does not know an option that says `unknown`.
    struct Options;

    impl OptionCheck for Options {
        fn check(&self, options: &Value) -> Vec<OptionFault> {
            let mut faults = Vec::new();
            walk("", options, &mut faults);
            if options.get("must").is_none() {
                faults.push(found("", Severity::Error));
            }
            faults
        }
    }

    fn walk(pointer: &str, value: &Value, faults: &mut Vec<OptionFault>) {
        match value {
            Value::String(text) if text == "bad" => faults.push(found(pointer, Severity::Error)),
            Value::String(text) if text == "odd" => faults.push(found(pointer, Severity::Warning)),
            Value::String(text) if text == "unknown" => faults.push(OptionFault {
                code: UNKNOWN_OPTION.to_owned(),
                ..found(pointer, Severity::Error)
            }),
            Value::Array(items) => {
                for (index, item) in items.iter().enumerate() {
                    walk(&format!("{pointer}/{index}"), item, faults);
                }
            }
            Value::Object(fields) => {
                for (name, field) in fields {
                    walk(
                        &format!("{pointer}/{}", name.replace('/', "~1")),
                        field,
                        faults,
                    );
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }

    fn found(pointer: &str, severity: Severity) -> OptionFault {
        OptionFault {
            pointer: pointer.to_owned(),
            severity,
            code: "E1".to_owned(),
            message: "is\nbad".to_owned(),
            help: Some("do better".to_owned()),
        }
    }

    fn with_plugins(yaml: &str) -> crate::Checked {
        check_text("p.yaml", yaml.as_bytes(), Limits::default(), &Plugins)
    }

    #[track_caller]
    fn check_plugins(yaml: &str, expected: &[(&str, u32, u32)]) {
        let checked = with_plugins(yaml);
        assert_eq!(places(&checked), expected, "{:#?}", checked.diagnostics);
    }

    #[track_caller]
    fn check_backend(fields: &str, expected: &[(&str, u32)]) {
        let expected: Vec<_> = expected
            .iter()
            .map(|(code, column)| (*code, 1, *column))
            .collect();
        check(&format!("backend: {{{fields}}}\n"), &expected);
    }

    fn settings(fields: &str) -> BackendSettings {
        sound(&format!("backend: {{{fields}}}\n")).backend
    }

    #[test]
    fn a_backend_names_a_kind_there_is() {
        check_backend("key_prefix: a", &[("Q0602", 10)]);
        check_backend("kind: reddis", &[("Q0601", 17)]);
        check_backend("kind: Redis", &[("Q0601", 17)]);
        check_backend("kind: ''", &[("Q0601", 17)]);
        check_backend("type: in_memory", &[("Q0602", 11)]);
        check_backend("kind: 'in_memory '", &[("Q0601", 17)]);
        check_backend("kind: in_memory", &[]);
        let (field, text, message, _, help) = fault("backend: {kind: reddis}\n");
        assert_eq!(field, "backend.kind");
        assert_eq!(text, "reddis");
        assert_eq!(message, "unknown backend kind `reddis`");
        assert_eq!(
            help,
            "did you mean `redis`? known kinds are `in_memory` and `redis`"
        );
        assert_eq!(
            fault("backend: {kind: In-Memory}\n").4,
            "did you mean `in_memory`?"
        );
        let searched = with_plugins("backend: {kind: mine}\n");
        let help = searched
            .diagnostics
            .first()
            .and_then(|fault| fault.help.as_deref());
        assert_eq!(
            help,
            Some("known kinds are `in_memory` and `near`; plugins were looked for in `/plugins`")
        );
    }

    #[test]
    fn fields_belong_to_kinds() {
        check_backend("kind: in_memory, url: redis://h", &[("Q0201", 28)]);
        check_backend(
            "kind: in_memory, connect_timeout_ms: 0, command_timeout_ms: 1, max_inflight: 1",
            &[("Q0201", 28), ("Q0201", 51), ("Q0201", 74)],
        );
        check_backend(
            "kind: redis, url: redis://h, max_entries: 0",
            &[("Q0201", 40)],
        );
        let (field, text, message, _, help) =
            fault("backend: {kind: redis, url: redis://h, max_entries: 0}\n");
        assert_eq!(field, "backend.max_entries");
        assert_eq!(text, "max_entries");
        assert_eq!(message, "backend kind `redis` has no field `max_entries`");
        assert_eq!(
            help,
            "`max_entries` bounds counters of this process, such as those of kind `in_memory`; remove it"
        );
    }

    #[test]
    fn in_memory_has_no_options_of_its_own() {
        check_backend("kind: in_memory, maxentries: 1", &[("Q0201", 28)]);
        assert_eq!(
            fault("backend: {kind: in_memory, maxentries: 1}\n").4,
            "did you mean `max_entries`?"
        );
        assert_eq!(
            fault("backend: {kind: in_memory, nodes: [1]}\n").4,
            "`in_memory` takes `kind`, `key_prefix`, `plugin`, `plugin_sha256` and `max_entries`"
        );
    }

    #[test]
    fn numbers_are_positive() {
        check_backend("kind: in_memory, max_entries: 0", &[("Q0604", 41)]);
        check_backend(
            "kind: redis, url: redis://h, connect_timeout_ms: 0, command_timeout_ms: 0, max_inflight: 0",
            &[("Q0608", 60), ("Q0609", 83), ("Q0610", 100)],
        );
        assert_eq!(
            fault("backend: {kind: in_memory, max_entries: 0}\n").4,
            "give a number of at least 1, or leave `max_entries` out for 4096"
        );
    }

    #[test]
    fn an_unknown_kind_leaves_the_sound_parts_checked() {
        check_backend(
            "kind: mine, max_entries: 0, max_inflight: 0, key_prefix: '', other: 1, url: ''",
            &[("Q0601", 17), ("Q0604", 36), ("Q0610", 53), ("Q0603", 68)],
        );
        check_backend(
            "kind: 7x, plugin: a/b, plugin_sha256: 1",
            &[("Q0601", 17), ("Q0616", 29), ("Q0617", 49)],
        );
    }

    #[test]
    fn redis_needs_a_redis_url() {
        check_backend("kind: redis", &[("Q0605", 10)]);
        check_backend("kind: redis, url: ' '", &[("Q0606", 29)]);
        check_backend("kind: redis, url: 'http://h'", &[("Q0607", 29)]);
        check_backend("kind: redis, url: 'redis://h/x'", &[("Q0607", 29)]);
        check_backend("kind: redis, url: ' rediss://u:p@h:1/2 '", &[]);
        check_backend("kind: redis, url: [1]", &[("Q0203", 29)]);
        let (_, _, message, ..) = fault("backend: {kind: redis, url: 'redis://u:pa55/w@h/0'}\n");
        assert_eq!(message, "URL cannot be read: invalid port number");
    }

    #[test]
    fn a_key_prefix_is_not_blank() {
        check_backend("kind: in_memory, key_prefix: ' '", &[("Q0603", 40)]);
        assert_eq!(
            &*settings("kind: in_memory, key_prefix: ' a '").key_prefix,
            "a"
        );
    }

    #[test]
    fn a_plugin_is_a_file_name_or_an_absolute_path() {
        for plugin in ["libq.so", "/opt/q/libq.so", " libq.so "] {
            check_backend(&format!("kind: in_memory, plugin: '{plugin}'"), &[]);
        }
        for plugin in [
            "",
            "a/libq.so",
            "./libq.so",
            "..",
            ".",
            "/",
            "/opt/..",
            "libq.so/",
            "a\\b",
        ] {
            check_backend(
                &format!("kind: in_memory, plugin: '{plugin}'"),
                &[("Q0616", 36)],
            );
        }
    }

    #[test]
    fn a_pin_is_64_hexadecimal_digits() {
        let pin = "aB".repeat(32);
        assert_eq!(
            settings(&format!("kind: in_memory, plugin_sha256: {pin}")).plugin_sha256,
            Some([0xab; 32])
        );
        for bad in [&"ab".repeat(31), &"ab".repeat(33), &"ag".repeat(32), "''"] {
            check_backend(
                &format!("kind: in_memory, plugin_sha256: {bad}"),
                &[("Q0617", 43)],
            );
        }
        let yaml = format!("backend: {{kind: pinned, plugin_sha256: {pin}}}\n");
        check_plugins(&yaml, &[]);
    }

    #[test]
    fn a_plugin_at_fault_says_nothing_of_its_kind() {
        check_backend(
            "kind: mine, plugin: a/b, max_entries: 1, max_inflight: 1",
            &[("Q0616", 31)],
        );
        check_backend(
            "kind: redis, plugin: a/b, url: '', max_entries: 1, other: 1",
            &[("Q0616", 32), ("Q0606", 42), ("Q0201", 46)],
        );
    }

    #[test]
    fn a_misspelt_kind_or_url_is_pointed_at_once() {
        let (_, text, _, _, help) = fault("backend: {key_prefix: a, type: in_memory}\n");
        assert_eq!(text, "type");
        assert_eq!(help, "did you mean `kind` by `type`?");
        let misspelt = "backend: {kind: redis, urll: redis://h}\n";
        let (field, text, message, _, help) = fault(misspelt);
        assert_eq!((field.as_str(), text.as_str()), ("backend.url", "urll"));
        assert_eq!(message, "backend `redis` has no `url`");
        assert_eq!(help, "did you mean `url` by `urll`?");
        let with = |option: &str| format!("backend: {{kind: redis, {option}: bad, must: 1}}\n");
        check_plugins(&with("urll"), &[("Q0605", 1, 24)]);
        check_plugins(&with("other"), &[("Q0605", 1, 10), ("Q0618", 1, 31)]);
    }

    #[test]
    fn a_refused_plugin_says_why() {
        check_plugins("backend: {kind: refused, other: 1}\n", &[("Q0615", 1, 17)]);
        let checked = with_plugins("backend: {kind: refused, plugin: libx.so}\n");
        assert_eq!(places(&checked), [("Q0615", 1, 34)]);
        let messages: Vec<_> = checked
            .diagnostics
            .iter()
            .map(|fault| &fault.message)
            .collect();
        assert_eq!(
            messages,
            ["backend `refused` cannot be used: libx.so: bad ABI"]
        );
    }

    #[test]
    fn a_kind_taken_on_trust_is_remote_unless_its_fields_say_otherwise() {
        let backend = |fields: &str| {
            let checked = with_plugins(&format!("backend: {{kind: trusted{fields}}}\n"));
            assert_eq!(places(&checked), [("Q0619", 1, 17)]);
            checked.quota.expect("a note refuses nothing").backend
        };
        assert!(backend("").is_remote());
        assert!(backend(", max_inflight: 1, nodes: [1]").is_remote());
        assert!(!backend(", max_entries: 1").is_remote());
        check_plugins(
            "backend: {kind: trusted, max_entries: 1, max_inflight: 1}\n",
            &[("Q0619", 1, 17), ("Q0201", 1, 26)],
        );
        check_plugins(
            "backend: {kind: trusted}\nlocal_fallback: {max_entries: 1}\n",
            &[("Q0619", 1, 17)],
        );
    }

    #[test]
    fn options_nobody_checked_are_noted() {
        check_backend("kind: redis, url: redis://h", &[]);
        check_backend(
            "kind: redis, url: redis://h, tls: {ca: x}, max_inflght: 1",
            &[("Q0619", 40)],
        );
        let (field, text, message, _, help) =
            fault("backend: {kind: redis, url: redis://h, tls: {ca: x}, max_inflght: 1}\n");
        assert_eq!(field, "backend.tls");
        assert_eq!(text, "tls");
        assert_eq!(
            message,
            "options of backend `redis` were not checked: `tls`, `max_inflght` (no plugin was asked)"
        );
        assert_eq!(
            help,
            "install the plugin of `redis` to have them checked; did you mean `max_inflight` by `max_inflght`?"
        );
    }

    #[test]
    fn a_plugin_finds_faults_of_its_options() {
        let yaml = "\
backend:
  kind: far
  must: [1]
  url: bad
  tls:
    'a/b': [good, bad]
    c: odd
";
        let checked = with_plugins(yaml);
        assert_eq!(
            places(&checked),
            [("Q0618", 4, 8), ("Q0618", 6, 19), ("Q0618", 7, 8)]
        );
        let said: Vec<_> = checked
            .diagnostics
            .iter()
            .map(|fault| (fault.field.as_str(), fault.severity, fault.message.as_str()))
            .collect();
        assert_eq!(
            said,
            [
                (
                    "backend.url",
                    Severity::Error,
                    "option `url`: is bad (far: E1)"
                ),
                (
                    "backend.tls.a/b[1]",
                    Severity::Error,
                    "option `tls.a/b[1]`: is bad (far: E1)"
                ),
                (
                    "backend.tls.c",
                    Severity::Warning,
                    "option `tls.c`: is bad (far: E1)"
                ),
            ]
        );
        check_plugins("backend:\n  kind: far\n  a: 1\n", &[("Q0618", 2, 9)]);
    }

    #[test]
    fn an_option_the_plugin_does_not_have_is_pointed_at_by_its_name() {
        let checked =
            with_plugins("backend: {kind: far, must: 1, max_inflght: unknown, a: {b: unknown}}\n");
        let found: Vec<_> = checked
            .diagnostics
            .iter()
            .map(|fault| (checked.text.slice(fault.span), fault.help.as_deref()))
            .collect();
        assert_eq!(
            found,
            [
                ("max_inflght", Some("did you mean `max_inflight`?")),
                ("unknown", Some("do better")),
            ]
        );
    }

    #[test]
    fn a_warning_of_a_plugin_refuses_nothing() {
        let checked = with_plugins("backend: {kind: near, must: odd, max_entries: 7}\n");
        assert_eq!(places(&checked), [("Q0618", 1, 29)]);
        let backend = checked.quota.expect("a quota").backend;
        assert!(!backend.is_remote());
        assert_eq!(Value::Object(backend.options), json!({"must": "odd"}));
    }

    #[test]
    fn a_url_at_fault_is_not_reported_again_by_the_plugin() {
        check_plugins("backend: {kind: redis}\n", &[("Q0605", 1, 10)]);
        check_plugins("backend: {kind: redis, url: bad}\n", &[("Q0607", 1, 29)]);
    }

    #[test]
    fn a_plugin_bounds_the_limits() {
        check_plugins(
            "backend: {kind: near, must: 1}\npolicies:\n\
             - {name: a, selector: {route: true}, burst: {requests: 1001, window_secs: 1}}\n",
            &[("Q0506", 3, 56)],
        );
    }

    #[test]
    fn a_fallback_stands_beside_a_remote_backend() {
        let fallback = "local_fallback: {max_entries: 1}\n";
        check(fallback, &[("Q0611", 1, 1)]);
        check(
            &format!("backend: {{kind: in_memory}}\n{fallback}"),
            &[("Q0611", 2, 1)],
        );
        check(
            &format!("backend: {{kind: redis, url: redis://h}}\n{fallback}"),
            &[],
        );
        check(
            &format!("backend: {{kind: mine}}\n{fallback}"),
            &[("Q0601", 1, 17)],
        );
        check("local_fallback: ~\nenabled: false\n", &[]);
        let (field, text, _, related, _) =
            fault(&format!("backend: {{kind: in_memory}}\n{fallback}"));
        assert_eq!(
            (field.as_str(), text.as_str()),
            ("local_fallback", "local_fallback")
        );
        assert_eq!(related, ["in_memory"]);
    }

    #[test]
    fn a_fallback_has_a_prefix_and_buckets() {
        let redis = "backend: {kind: redis, url: redis://h}\n";
        check(
            &format!("{redis}local_fallback: {{key_prefix: '', max_entries: 0}}\n"),
            &[("Q0612", 2, 30), ("Q0613", 2, 47)],
        );
        check(
            &format!("{redis}local_fallback: {{}}\n"),
            &[("Q0204", 2, 17)],
        );
        let quota = sound(&format!("{redis}local_fallback: {{max_entries: 5}}\n"));
        assert_eq!(
            quota.fallback,
            Some(FallbackSettings {
                key_prefix: DEFAULT_FALLBACK_KEY_PREFIX.into(),
                max_entries: NonZeroU64::new(5).expect("not zero"),
            })
        );
    }

    #[test]
    fn a_shared_prefix_is_warned_of() {
        let both = |backend: &str, fallback: &str| {
            format!(
                "backend: {{kind: redis, url: redis://h{backend}}}\nlocal_fallback: {{max_entries: 1{fallback}}}\n"
            )
        };
        check(
            &both(", key_prefix: a", ", key_prefix: ' a'"),
            &[("Q0614", 2, 46)],
        );
        check(
            &both("", ", key_prefix: 'impulse:quota'"),
            &[("Q0614", 2, 46)],
        );
        check(
            &both(", key_prefix: 'impulse:quota:fallback'", ""),
            &[("Q0614", 2, 1)],
        );
        check(&both(", key_prefix: a", ", key_prefix: b"), &[]);
        check(
            &both(", key_prefix: ''", ", key_prefix: ''"),
            &[("Q0603", 1, 52), ("Q0612", 2, 46)],
        );
        check(
            "backend: {kind: in_memory, key_prefix: a}\nlocal_fallback: {max_entries: 1, key_prefix: a}\n",
            &[("Q0611", 2, 1)],
        );
        let checked = crate::check::tests::checked(&both(", key_prefix: a", ", key_prefix: a"));
        assert!(checked.quota.is_some());
    }

    #[test]
    fn sound_settings_arrive() {
        assert_eq!(settings("kind: in_memory"), BackendSettings::default());
        let redis = settings(
            "kind: redis, url: ' redis://h ', key_prefix: p, plugin: libr.so, connect_timeout_ms: 1, command_timeout_ms: 2, max_inflight: 3",
        );
        let number = |number| NonZeroU64::new(number).expect("not zero");
        assert_eq!(
            redis,
            BackendSettings {
                kind: "redis".into(),
                key_prefix: "p".into(),
                place: BackendPlace::Remote {
                    connect_timeout_ms: number(1),
                    command_timeout_ms: number(2),
                    max_inflight: number(3),
                },
                plugin: Some("libr.so".into()),
                plugin_sha256: None,
                options: Map::from_iter([("url".to_owned(), json!("redis://h"))]),
            }
        );
        assert_eq!(
            settings("kind: redis, url: redis://h").place,
            BackendPlace::Remote {
                connect_timeout_ms: DEFAULT_CONNECT_TIMEOUT_MS,
                command_timeout_ms: DEFAULT_COMMAND_TIMEOUT_MS,
                max_inflight: DEFAULT_MAX_INFLIGHT,
            }
        );
    }
}
