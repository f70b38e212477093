//! The contract as a slow, obvious interpreter of the checked IR. It shares no code for keys, windows, routes or identities with
//! the engine: where the two agree, both may be right; where they differ, one of them is wrong.

use std::collections::BTreeMap;

use quota_compiler::ir::{Policy, Quota, Routes, Window};
use quota_compiler::settings::BackendPlace;
use quota_compiler::terms::{Dimension, Enforcement, FailurePolicy, Source};
use quota_compiler::{Limits, check_text};
use quota_runtime::clock::UnixMillis;
use quota_runtime::outcome::{BackendFailure, Decision, Reason};
use quota_runtime::request::ClientAddress;
use quotac::cases::CaseRequest;
use quotac::cases::run::{Actual, ActualOutcome, Decides, Executor, NotOpened};
use quotac::kinds::PluginOptions;

/// Runs policies on the model.
#[derive(Clone, Copy, Debug, Default)]
pub struct Model;

impl Executor for Model {
    type Open = OpenModel;

    fn open(&self, name: &str, bytes: &[u8]) -> Result<OpenModel, NotOpened> {
        let kinds = PluginOptions::default()
            .kinds()
            .map_err(|error| NotOpened::Other(error.to_string()))?;
        let checked = check_text(name, bytes, Limits::default(), &kinds);
        match checked.quota {
            Some(quota) => Ok(OpenModel::new(quota)),
            None => Err(NotOpened::Refused {
                text: checked.text,
                diagnostics: checked.diagnostics,
            }),
        }
    }
}

/// Policies that run on the model.
#[derive(Clone, Debug)]
pub struct OpenModel {
    quota: Quota,
    primary: Counters,
    fallback: Option<Counters>,
}

/// A value of a dimension, or why there is none.
type Found = Result<String, Reason>;

/// Policy, and the values of its dimensions.
type Identity = (String, Vec<(Dimension, String)>);

impl OpenModel {
    /// The policies `quota` with nothing counted.
    #[must_use]
    pub fn new(quota: Quota) -> Self {
        let primary = match quota.backend.place {
            BackendPlace::Local { max_entries } => Counters::in_process(max_entries.get()),
            BackendPlace::Remote { .. } => Counters::shared(),
        };
        let fallback = quota
            .fallback
            .as_ref()
            .map(|fallback| Counters::in_process(fallback.max_entries.get()));
        Self {
            quota,
            primary,
            fallback,
        }
    }

    /// Everything counted, to see that a denial changed nothing.
    #[must_use]
    pub fn counted(&self) -> String {
        format!("{:?} {:?}", self.primary, self.fallback)
    }

    fn evaluate(
        &mut self,
        policy: &Policy,
        request: &CaseRequest,
        now: u64,
        fault: Option<BackendFailure>,
    ) -> (ActualOutcome, Option<u64>) {
        let kind = self.quota.backend.kind.to_string();
        let mut outcome = ActualOutcome {
            policy: policy.name.to_string(),
            decision: Decision::Allowed,
            reason: Reason::Allowed,
            backend_mode: kind.clone(),
        };
        let denial = match self.quota.enforcement {
            Enforcement::Enforce => Decision::Denied,
            Enforcement::Shadow => Decision::ShadowDenied,
        };
        let identity = match identity(policy, request) {
            Ok(identity) => identity,
            Err(reason) => {
                (outcome.decision, outcome.reason) = (denial, reason);
                return (outcome, None);
            }
        };

        let primary = match fault {
            Some(failure) => Err(failure),
            None => self.primary.charge(&identity, policy, now),
        };
        let answer = match (primary, &mut self.fallback) {
            (
                Err(failure @ (BackendFailure::Timeout | BackendFailure::Unavailable)),
                Some(fallback),
            ) => match fallback.charge(&identity, policy, now) {
                Ok(answer) => {
                    let why = if failure == BackendFailure::Timeout {
                        "timeout"
                    } else {
                        "unavailable"
                    };
                    outcome.backend_mode = format!("{kind}_local_fallback_backend_{why}");
                    Ok(answer)
                }
                Err(_full) => Err(BackendFailure::Unavailable),
            },
            (answer, _) => answer,
        };

        match answer {
            Ok(exhausted) if exhausted.is_empty() => (outcome, None),
            Ok(exhausted) => {
                outcome.decision = denial;
                outcome.reason = if exhausted.contains(&Kind::Burst) {
                    Reason::BurstQuotaExhausted
                } else {
                    Reason::SustainedQuotaExhausted
                };
                let resets = exhausted
                    .iter()
                    .filter_map(|kind| window(policy, *kind))
                    .map(|window| start(now, window) + length_ms(window));
                let retry_after = resets.max().filter(|_| denial == Decision::Denied);
                (outcome, retry_after)
            }
            Err(failure) => {
                outcome.reason = match failure {
                    BackendFailure::Timeout => Reason::BackendTimeout,
                    BackendFailure::Unavailable => Reason::BackendUnavailable,
                    BackendFailure::Error => Reason::BackendError,
                };
                outcome.decision = match (self.quota.enforcement, self.quota.failure_policy) {
                    (Enforcement::Enforce, FailurePolicy::FailClosed) => Decision::FailedClosed,
                    (Enforcement::Shadow, _) | (_, FailurePolicy::FailOpen) => Decision::FailedOpen,
                };
                (outcome, None)
            }
        }
    }
}

impl Decides for OpenModel {
    fn decide(
        &mut self,
        request: &CaseRequest,
        now: UnixMillis,
        fault: Option<BackendFailure>,
    ) -> Result<Actual, String> {
        if fault.is_some() && !self.quota.backend.is_remote() {
            return Err("counters of this process have no faults".to_owned());
        }
        let mut outcomes = Vec::new();
        let mut status = 200;
        let mut retry_after = None;
        if self.quota.enabled {
            for policy in self.quota.policies.clone() {
                if !applies(&policy, request) {
                    continue;
                }
                let (outcome, reset) = self.evaluate(&policy, request, now.0, fault);
                let decision = outcome.decision;
                outcomes.push(outcome);
                if decision == Decision::Denied {
                    status = 429;
                    retry_after = reset.map(|reset| whole_seconds(reset - now.0));
                    break;
                }
                if decision == Decision::FailedClosed {
                    status = 503;
                    break;
                }
            }
        }
        Ok(Actual {
            status,
            retry_after,
            outcomes,
        })
    }
}

fn whole_seconds(millis: u64) -> u32 {
    let seconds = millis / 1000 + u64::from(!millis.is_multiple_of(1000));
    u32::try_from(seconds.max(1)).unwrap_or(u32::MAX)
}

fn route(request: &CaseRequest) -> Option<&str> {
    let route = request.route.as_deref()?.trim();
    if route.is_empty() { None } else { Some(route) }
}

fn applies(policy: &Policy, request: &CaseRequest) -> bool {
    match &policy.routes {
        Routes::Every => true,
        Routes::Listed(listed) => listed.iter().any(|one| Some(&**one) == route(request)),
    }
}

// Windows (contract §6).

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Burst,
    Sustained,
}

const KINDS: [Kind; 2] = [Kind::Burst, Kind::Sustained];

fn window(policy: &Policy, kind: Kind) -> Option<Window> {
    match kind {
        Kind::Burst => policy.windows.burst(),
        Kind::Sustained => policy.windows.sustained(),
    }
}

fn length_ms(window: Window) -> u64 {
    u64::from(window.length_secs.get()) * 1000
}

fn start(now: u64, window: Window) -> u64 {
    now - now % length_ms(window)
}

/// Counters of one place.
#[derive(Clone, Debug)]
enum Counters {
    /// One counter for each window instance: kind, length and start.
    Shared(BTreeMap<(Identity, Kind, u64, u64), u64>),
    /// One bucket for each identity, at most so many active.
    InProcess(u64, BTreeMap<Identity, Bucket>),
}

/// What is counted for one identity: start and count of each window.
type Bucket = BTreeMap<Kind, (Window, u64, u64)>;

impl Counters {
    fn shared() -> Self {
        Self::Shared(BTreeMap::new())
    }

    fn in_process(max_entries: u64) -> Self {
        Self::InProcess(max_entries, BTreeMap::new())
    }

    /// The exhausted windows; where there are none, each window is charged 1.
    fn charge(
        &mut self,
        identity: &Identity,
        policy: &Policy,
        now: u64,
    ) -> Result<Vec<Kind>, BackendFailure> {
        let windows: Vec<(Kind, Window)> = KINDS
            .into_iter()
            .filter_map(|kind| Some((kind, window(policy, kind)?)))
            .collect();
        match self {
            Self::Shared(counters) => {
                let name = |(kind, window): (Kind, Window)| {
                    (
                        identity.clone(),
                        kind,
                        length_ms(window),
                        start(now, window),
                    )
                };
                let exhausted: Vec<Kind> = windows
                    .iter()
                    .filter(|window| {
                        counters.get(&name(**window)).copied().unwrap_or(0)
                            >= window.1.requests.get()
                    })
                    .map(|(kind, _)| *kind)
                    .collect();
                if exhausted.is_empty() {
                    for window in windows {
                        *counters.entry(name(window)).or_insert(0) += 1;
                    }
                }
                Ok(exhausted)
            }
            Self::InProcess(max_entries, buckets) => {
                let others = buckets
                    .iter()
                    .filter(|(other, bucket)| *other != identity && is_active(bucket, now))
                    .count();
                let known = buckets
                    .get(identity)
                    .is_some_and(|bucket| is_active(bucket, now));
                if !known && u64::try_from(others).unwrap_or(u64::MAX) >= *max_entries {
                    return Err(BackendFailure::Unavailable);
                }
                // Where a place is needed, what has ended is given up, and does not come back with the clock.
                let held = u64::try_from(buckets.len()).unwrap_or(u64::MAX);
                if !buckets.contains_key(identity) && held >= *max_entries {
                    buckets.retain(|_, bucket| is_active(bucket, now));
                }
                let bucket = buckets.get(identity).cloned().unwrap_or_default();
                let counted = |(kind, window): (Kind, Window)| match bucket.get(&kind) {
                    Some((_, stored, used)) if holds(*stored, window, now) => (*stored, *used),
                    _ => (start(now, window), 0),
                };
                let exhausted: Vec<Kind> = windows
                    .iter()
                    .filter(|window| counted(**window).1 >= window.1.requests.get())
                    .map(|(kind, _)| *kind)
                    .collect();
                if exhausted.is_empty() {
                    let mut charged = bucket.clone();
                    for (kind, window) in windows {
                        let (start, used) = counted((kind, window));
                        charged.insert(kind, (window, start, used + 1));
                    }
                    buckets.insert(identity.clone(), charged);
                }
                Ok(exhausted)
            }
        }
    }
}

/// Whether a reading counts in the window stored: inside of it, or before it by less than the larger of its length and 60 s.
fn holds(stored_start: u64, window: Window, now: u64) -> bool {
    if now < stored_start {
        stored_start - now < length_ms(window).max(60_000)
    } else {
        now - stored_start < length_ms(window)
    }
}

fn is_active(bucket: &Bucket, now: u64) -> bool {
    bucket
        .values()
        .any(|(window, start, _)| holds(*start, *window, now))
}

// Identities (contract §4).

fn identity(policy: &Policy, request: &CaseRequest) -> Result<Identity, Reason> {
    let mut values = Vec::new();
    if policy.selector.has_route() {
        let route = route(request).ok_or(Reason::SelectorIdentityMissing)?;
        values.push((Dimension::Route, route.to_owned()));
    }
    for dimension in [Dimension::Tenant, Dimension::Token, Dimension::Client] {
        if let Some(source) = policy.selector.source(dimension) {
            values.push((dimension, value(source, request)?));
        }
    }
    Ok((policy.name.to_string(), values))
}

fn value(source: &Source, request: &CaseRequest) -> Found {
    match source {
        Source::Header(name) => one_of(lines(request, name).into_iter().map(text).collect()),
        Source::Cookie(name) => one_of(cookies(request, name)),
        Source::Query(name) => one_of(parameters(request, name)),
        Source::BearerToken => one_of(
            lines(request, "authorization")
                .into_iter()
                .map(bearer)
                .collect(),
        ),
        Source::ClientIp => match request.client {
            ClientAddress::Known(address) => Ok(address.to_canonical().to_string()),
            ClientAddress::Unknown => Err(Reason::SelectorIdentityMissing),
            ClientAddress::Unparsable => Err(Reason::SelectorIdentityInvalid),
        },
    }
}

const INVALID: Reason = Reason::SelectorIdentityInvalid;

/// The one value of all occurrences, each trimmed or at fault.
fn one_of(occurrences: Vec<Found>) -> Found {
    let values: Vec<String> = occurrences.into_iter().collect::<Result<_, _>>()?;
    let Some(first) = values.first() else {
        return Err(Reason::SelectorIdentityMissing);
    };
    if values.iter().any(|value| value != first) {
        return Err(INVALID);
    }
    if first.is_empty() {
        return Err(Reason::SelectorIdentityMissing);
    }
    if first.len() > 256 {
        return Err(INVALID);
    }
    Ok(first.clone())
}

fn text(bytes: Vec<u8>) -> Found {
    let text = String::from_utf8(bytes).map_err(|_| INVALID)?;
    Ok(text.trim().to_owned())
}

fn lines(request: &CaseRequest, name: &str) -> Vec<Vec<u8>> {
    let lines = request.headers.iter();
    lines
        .filter(|(own, _)| own.to_ascii_lowercase() == name)
        .map(|(_, value)| value.clone())
        .collect()
}

fn cookies(request: &CaseRequest, name: &str) -> Vec<Found> {
    let mut found = Vec::new();
    for line in lines(request, "cookie") {
        for part in line.split(|byte| *byte == b';') {
            let Some(equals) = part.iter().position(|byte| *byte == b'=') else {
                continue;
            };
            let (own, value) = (part[..equals].to_vec(), part[equals + 1..].to_vec());
            if text(own).is_ok_and(|own| own.to_ascii_lowercase() == name) {
                found.push(text(value).map(|value| {
                    let inner = value
                        .strip_prefix('"')
                        .and_then(|rest| rest.strip_suffix('"'));
                    inner.unwrap_or(&value).trim().to_owned()
                }));
            }
        }
    }
    found
}

fn parameters(request: &CaseRequest, name: &str) -> Vec<Found> {
    let query = String::from_utf8_lossy(request.query()).into_owned();
    let mut found = Vec::new();
    for pair in query.split('&') {
        let (own, value) = pair.split_once('=').unwrap_or((pair, ""));
        let own = form_decoded(own).and_then(|own| String::from_utf8(own).ok());
        if own.is_some_and(|own| own.to_ascii_lowercase() == name) {
            found.push(form_decoded(value).ok_or(INVALID).and_then(text));
        }
    }
    found
}

/// `None` for a broken escape.
fn form_decoded(text: &str) -> Option<Vec<u8>> {
    let mut decoded = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        rest = after;
        match first {
            b'+' => decoded.push(b' '),
            b'%' => {
                let [high, low, after @ ..] = rest else {
                    return None;
                };
                let digit = |byte: u8| char::from(byte).to_digit(16);
                let byte = digit(*high)? * 16 + digit(*low)?;
                decoded.push(u8::try_from(byte).ok()?);
                rest = after;
            }
            other => decoded.push(*other),
        }
    }
    Some(decoded)
}

/// The token of one `Authorization` line; empty for an empty line.
fn bearer(line: Vec<u8>) -> Found {
    let line = text(line)?;
    if line.is_empty() {
        return Ok(line);
    }
    let (scheme, token) = line.split_once(char::is_whitespace).ok_or(INVALID)?;
    let token = token.trim();
    let sound = scheme.eq_ignore_ascii_case("bearer")
        && !token.is_empty()
        && !token.contains(char::is_whitespace)
        && token.len() <= 256;
    if sound {
        Ok(token.to_owned())
    } else {
        Err(INVALID)
    }
}
