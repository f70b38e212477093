//! What every backend must do: named checks, run by our tests and by vendors against their own plugin.
//!
//! ```no_run
//! use quota_plugin_host::{Plugin, Settings, suite};
//!
//! fn passes(plugin: Plugin, now_unix_ms: u64) {
//!     let subject = suite::Subject { plugin, options: serde_json::json!({}), settings: Settings::default(), now_unix_ms };
//!     for report in suite::run(&subject) {
//!         assert!(!report.failed(), "{report}");
//!     }
//! }
//! ```
//!
//! Ids are stable. Letters: B description, C options, D life, E decisions, F batches, G completion, I extras.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::decision::{BackendFailure, Item, Verdict, Window, WindowKind};
use crate::instance::{Batch, End, HealthState, Instance, Settings};
use crate::options::has_error;
use crate::plugin::Plugin;

const SECOND: u64 = 1_000;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;
const PATIENCE: Duration = Duration::from_secs(10);

/// A backend under test.
#[derive(Clone, Debug)]
pub struct Subject {
    /// The backend.
    pub plugin: Plugin,
    /// Options it works with; its server, if it has one, must be up.
    pub options: Value,
    /// Settings; each check uses a key prefix of its own below this one.
    pub settings: Settings,
    /// The time, Unix milliseconds: checks happen around it, so that a store's own expiry does not interfere.
    pub now_unix_ms: u64,
}

/// One thing a backend must do.
#[derive(Clone, Copy, Debug)]
pub struct Check {
    /// Stable name, such as `E1`.
    pub id: &'static str,
    /// What must hold.
    pub title: &'static str,
    needs: fn(&Subject) -> Option<&'static str>,
    run: fn(&Subject, &str) -> Result<(), String>,
}

/// How a check ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It holds.
    Passed,
    /// It does not hold; what happened instead.
    Failed(String),
    /// It does not apply; what the backend lacks.
    Skipped(&'static str),
}

/// A check and how it ended.
#[derive(Clone, Debug)]
pub struct Report {
    /// The check.
    pub check: &'static Check,
    /// How it ended.
    pub outcome: Outcome,
}

impl Report {
    /// Whether what must hold does not.
    #[must_use]
    pub const fn failed(&self) -> bool {
        matches!(self.outcome, Outcome::Failed(_))
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Check { id, title, .. } = self.check;
        match &self.outcome {
            Outcome::Passed => write!(f, "{id} passed: {title}"),
            Outcome::Failed(what) => write!(f, "{id} failed: {title}: {what}"),
            Outcome::Skipped(why) => write!(f, "{id} skipped ({why}): {title}"),
        }
    }
}

impl Check {
    /// What the backend lacks for this check; `None` if it applies.
    #[must_use]
    pub fn skipped(&self, subject: &Subject) -> Option<&'static str> {
        (self.needs)(subject)
    }

    /// Runs it, whether it applies or not.
    ///
    /// # Errors
    /// What happened instead of what must.
    pub fn run(&self, subject: &Subject) -> Result<(), String> {
        (self.run)(subject, self.id)
    }
}

/// Every check, sorted by id.
#[must_use]
pub const fn checks() -> &'static [Check] {
    CHECKS
}

/// Runs every check.
#[must_use]
pub fn run(subject: &Subject) -> Vec<Report> {
    let run = |check: &'static Check| Report {
        check,
        outcome: match check.skipped(subject) {
            Some(why) => Outcome::Skipped(why),
            None => check
                .run(subject)
                .map_or_else(Outcome::Failed, |()| Outcome::Passed),
        },
    };
    CHECKS.iter().map(run).collect()
}

const fn always(_: &Subject) -> Option<&'static str> {
    None
}

fn not_inline(subject: &Subject) -> Option<&'static str> {
    subject
        .plugin
        .capabilities()
        .inline()
        .then_some("decides inside the call")
}

fn local(subject: &Subject) -> Option<&'static str> {
    let capabilities = subject.plugin.capabilities();
    (capabilities.shared() || capabilities.remote()).then_some("its counters live elsewhere")
}

fn batches_of_three(subject: &Subject) -> Option<&'static str> {
    subject
        .plugin
        .max_batch()
        .is_some_and(|most| most < 3)
        .then_some("takes fewer than three items at once")
}

macro_rules! checks {
    ($($id:literal $needs:ident $run:ident $title:literal;)+) => {
        const CHECKS: &[Check] = &[$(Check { id: $id, title: $title, needs: $needs, run: $run }),+];
    };
}

checks! {
    "B7" always unknown_extension "an unknown extension id gives null";
    "C2" always own_options_accepted "options it works with are accepted";
    "C3" always wrong_options_refused "an unknown option and each option of a wrong type is refused, at its place";
    "C4" always not_options_refused "text that is no JSON object is refused without harm";
    "C5" always validate_is_pure "the same options get the same findings";
    "D1" always create_and_destroy "a hundred instances are made and destroyed in turn";
    "D3" always prefixes_are_apart "two instances with two prefixes share no counter";
    "D5" not_inline destroy_answers_all "destroying with checks in flight answers every one";
    "D6" always drain_then_destroy "draining after use and destroying gives everything back";
    "D10" always destroy_elsewhere "an instance may be destroyed on another thread";
    "E1" always exact_limit "a limit of n admits n, then denies";
    "E2" always exact_under_threads "many threads on one key are admitted exactly up to the limit";
    "E3" always denial_charges_nothing "a denial charges no window";
    "E4" always both_exhausted "two exhausted windows are both named";
    "E5" always used_counts "used is the count after each decision";
    "E6" always turns_exactly "a window turns at its reset, not a millisecond earlier";
    "E7" always burst_turns_alone "a burst window turns while the sustained one goes on";
    "E8" always one_window_only "a single window of either kind works";
    "E9" always limit_changes "a changed limit keeps the count";
    "E10" always length_changes "a changed length counts afresh and leaves the old count alone";
    "E11" always keys_are_apart "keys that differ in one byte or are each other's beginning share nothing";
    "E12" always any_bytes "keys may hold every byte and be 512 bytes long";
    "E13" always equal_hashes "different keys with an equal hash share nothing";
    "E14" always large_limits "limits up to the greatest one work";
    "E15" always clock_steps "steps of the clock back and forth do what the contract says";
    "E16" always like_the_model "random checks are decided as a simple model decides them";
    "E17" local capacity "a full store refuses new keys, serves known ones and has room again after expiry";
    "F1" batches_of_three batch_is_one_by_one "a batch is decided as its items one by one";
    "F2" batches_of_three stops_at_denial "after a denial the rest is not evaluated and not charged";
    "F3" batches_of_three goes_on_without_stop "without a stop flag a denial does not touch the rest";
    "F5" batches_of_three same_key_twice "a key twice in one batch is charged twice";
    "F6" always empty_batch "an empty batch has no answers";
    "G1" not_inline completes_once "a thousand checks are answered exactly once";
    "G3" not_inline past_deadline "a check past its deadline is answered soon, with a timeout, and not charged";
    "I6" local resize "a new capacity holds at once, keeps counters and evicts nothing";
}

/// An instance with a prefix nobody else uses.
fn instance(subject: &Subject, id: &str) -> Result<Instance, String> {
    instance_with(subject, id, |_| {})
}

fn instance_with(
    subject: &Subject,
    id: &str,
    change: impl FnOnce(&mut Settings),
) -> Result<Instance, String> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let mut settings = subject.settings.clone();
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    settings.key_prefix = format!(
        "{}:{id}:{}:{}:{number}",
        settings.key_prefix,
        subject.now_unix_ms,
        std::process::id()
    );
    change(&mut settings);
    let instance = subject.plugin.create(&settings, &subject.options);
    let instance = instance.map_err(|error| format!("no instance: {error}"))?;
    if subject.plugin.capabilities().remote() {
        until_connected(&instance)?;
    }
    Ok(instance)
}

/// A remote backend connects in the background; checks before that may be unavailable.
fn until_connected(instance: &Instance) -> Result<(), String> {
    let deadline = Instant::now() + PATIENCE;
    while instance.health().state == HealthState::Unavailable {
        if Instant::now() > deadline {
            return Err(format!(
                "still unavailable: {:?}",
                instance.health().last_error
            ));
        }
        std::thread::yield_now();
    }
    Ok(())
}

/// The beginning of an hour near the subject's time.
const fn hour(subject: &Subject) -> u64 {
    subject.now_unix_ms - subject.now_unix_ms % HOUR
}

const fn window(kind: WindowKind, limit: u64, length_ms: u64, now: u64) -> Window {
    let start_ms = now - now % length_ms;
    Window {
        kind,
        limit,
        length_ms,
        start_ms,
        reset_ms: start_ms + length_ms,
    }
}

const fn burst(limit: u64, length_ms: u64, now: u64) -> Window {
    window(WindowKind::Burst, limit, length_ms, now)
}

const fn sustained(limit: u64, length_ms: u64, now: u64) -> Window {
    window(WindowKind::Sustained, limit, length_ms, now)
}

/// A spreading hash (FNV-1a), as good as any: plugins must not rely on it.
fn hash(key: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    key.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

fn item<'a>(key: &'a [u8], windows: &'a [Window]) -> Item<'a> {
    Item {
        key,
        key_hash: hash(key),
        windows,
    }
}

fn ask_all(instance: &Instance, items: &[Item<'_>], stop: bool, now: u64) -> Vec<Verdict> {
    let deadline = Instant::now() + PATIENCE;
    instance
        .check_batch(items, stop, stop, now, Some(deadline))
        .wait_until(None)
}

fn ask(instance: &Instance, key: &[u8], windows: &[Window], now: u64) -> Verdict {
    let answer = ask_all(instance, &[item(key, windows)], true, now);
    answer.first().copied().unwrap_or(Verdict::NotEvaluated)
}

const fn allowed(burst: u64, sustained: u64) -> Verdict {
    Verdict::Allowed {
        used: [burst, sustained],
    }
}

/// A denial whatever its counts and wherever it was known.
fn expect_denied(what: &str, found: Verdict, expected: [bool; 2]) -> Result<(), String> {
    match found {
        Verdict::Denied { exhausted, .. } if exhausted == expected => Ok(()),
        Verdict::Denied { .. }
        | Verdict::Allowed { .. }
        | Verdict::NotEvaluated
        | Verdict::Failed(_) => Err(format!(
            "{what}: expected a denial with exhausted {expected:?}, found {found:?}"
        )),
    }
}

#[expect(
    clippy::needless_pass_by_value,
    reason = "callers compare with values made on the spot"
)]
fn expect<T: PartialEq + fmt::Debug>(what: &str, found: T, expected: T) -> Result<(), String> {
    if found == expected {
        return Ok(());
    }
    Err(format!("{what}: expected {expected:?}, found {found:?}"))
}

fn unknown_extension(subject: &Subject, id: &str) -> Result<(), String> {
    let instance = instance(subject, id)?;
    for unknown in [
        "quota.no_such_extension/1",
        "quota.resize/0",
        "",
        "quota.resize/1 ",
    ] {
        if instance.extension(unknown).is_some() {
            return Err(format!("`{unknown}` gives a table"));
        }
    }
    Ok(())
}

fn own_options_accepted(subject: &Subject, _: &str) -> Result<(), String> {
    let found = subject.plugin.validate(&subject.options);
    if has_error(&found) {
        return Err(format!("{found:?}"));
    }
    Ok(())
}

fn wrong_options_refused(subject: &Subject, _: &str) -> Result<(), String> {
    let refused_at = |name: &str, value: Value| {
        let mut options = subject.options.clone();
        if let Some(options) = options.as_object_mut() {
            options.insert(name.to_owned(), value);
        }
        let place = format!("/{}", crate::options::escape(name));
        let text = options.to_string();
        // The schema and the plugin itself must both refuse it: a schema is no excuse for trusting the text.
        for (who, found) in [
            (
                "the schema and the plugin",
                subject.plugin.validate(&options),
            ),
            (
                "the plugin itself",
                subject.plugin.validate_text(&text, &options),
            ),
        ] {
            let at_place = |pointer: &str| pointer.is_empty() || pointer.starts_with(&place);
            if !has_error(&found) || !found.iter().any(|d| at_place(&d.pointer)) {
                return Err(format!("{who} did not refuse option `{name}`: {found:?}"));
            }
        }
        Ok(())
    };
    refused_at("no_such_option", json!(1))?;
    let properties = subject
        .plugin
        .options_schema()
        .get("properties")
        .and_then(Value::as_object);
    for (name, schema) in properties.into_iter().flatten() {
        let types = schema
            .get("type")
            .map(ToString::to_string)
            .unwrap_or_default();
        let wrong = if types.contains("array") {
            json!(true)
        } else {
            json!([[]])
        };
        if !types.is_empty() || schema.get("enum").is_some() {
            refused_at(name, wrong)?;
        }
    }
    Ok(())
}

fn not_options_refused(subject: &Subject, _: &str) -> Result<(), String> {
    let deep = "[".repeat(100_000);
    let long = format!("{{\"{}\": 1}}", "x".repeat(1 << 19));
    for text in [
        "",
        " ",
        "{",
        "[]",
        "null",
        "1",
        "\"a\"",
        "{\"a\":}",
        "{\"\\ud800\": 1}",
        &deep,
        &long,
    ] {
        let found = subject.plugin.validate_text(text, &json!({}));
        if !has_error(&found) {
            let beginning: String = text.chars().take(20).collect();
            return Err(format!("`{beginning}` is accepted"));
        }
    }
    Ok(())
}

fn validate_is_pure(subject: &Subject, _: &str) -> Result<(), String> {
    for options in [subject.options.clone(), json!({"no_such_option": 1})] {
        let [first, second] = [0; 2].map(|_| subject.plugin.validate(&options));
        expect("the second time", second, first)?;
    }
    Ok(())
}

fn create_and_destroy(subject: &Subject, _: &str) -> Result<(), String> {
    for round in 0..100 {
        let made = subject.plugin.create(&subject.settings, &subject.options);
        let instance = made.map_err(|error| format!("round {round}: {error}"))?;
        let end = instance.drain_and_destroy(Instant::now() + PATIENCE);
        expect("the end", end, End::Destroyed)?;
    }
    Ok(())
}

fn prefixes_are_apart(subject: &Subject, id: &str) -> Result<(), String> {
    let now = hour(subject);
    let [first, second] = [instance(subject, id)?, instance(subject, id)?];
    for instance in [&first, &second] {
        let windows = [burst(1, HOUR, now)];
        expect(
            "the first check",
            ask(instance, b"key", &windows, now),
            allowed(1, 0),
        )?;
        expect_denied(
            "the second check",
            ask(instance, b"key", &windows, now),
            [true, false],
        )?;
    }
    Ok(())
}

fn destroy_answers_all(subject: &Subject, id: &str) -> Result<(), String> {
    let now = hour(subject);
    let instance = instance(subject, id)?;
    let windows = [burst(1_000, HOUR, now)];
    let batches: Vec<Batch> = (0..64)
        .map(|_| instance.check_batch(&[item(b"key", &windows)], true, true, now, None))
        .collect();
    let end = instance.drain_and_destroy(Instant::now() + PATIENCE);
    expect("the end", end, End::Destroyed)?;
    for batch in batches {
        match batch.wait_until(Some(Instant::now())).first() {
            Some(Verdict::Allowed { .. } | Verdict::Failed(BackendFailure::Unavailable)) => {}
            other => return Err(format!("a check in flight was answered {other:?}")),
        }
    }
    Ok(())
}

fn drain_then_destroy(subject: &Subject, id: &str) -> Result<(), String> {
    let now = hour(subject);
    let instance = instance(subject, id)?;
    let windows = [burst(10, HOUR, now)];
    expect(
        "a check",
        ask(&instance, b"key", &windows, now),
        allowed(1, 0),
    )?;
    expect("in flight", instance.health().inflight, 0)?;
    let end = instance.drain_and_destroy(Instant::now() + PATIENCE);
    expect("the end", end, End::Destroyed)
}

fn destroy_elsewhere(subject: &Subject, id: &str) -> Result<(), String> {
    let instance = instance(subject, id)?;
    let destroy = move || instance.drain_and_destroy(Instant::now() + PATIENCE);
    let thread = std::thread::Builder::new().spawn(destroy);
    let end = thread
        .map_err(|error| format!("no thread: {error}"))?
        .join()
        .map_err(|_| "the thread panicked".to_owned())?;
    expect("the end", end, End::Destroyed)
}

fn exact_limit(subject: &Subject, id: &str) -> Result<(), String> {
    let now = hour(subject);
    let instance = instance(subject, id)?;
    for limit in [1, 2, 7] {
        for (kind, second) in [
            (WindowKind::Burst, false),
            (WindowKind::Sustained, false),
            (WindowKind::Burst, true),
        ] {
            let key = format!("{limit}{kind:?}{second}");
            let one = window(kind, limit, MINUTE, now);
            let windows = [one, sustained(limit, HOUR, now)];
            let windows = if second { &windows[..] } else { &windows[..1] };
            for count in 1..=limit {
                let used = if second { count } else { 0 };
                let found = ask(&instance, key.as_bytes(), windows, now);
                expect(
                    &format!("check {count} of {limit}"),
                    found,
                    allowed(count, used),
                )?;
            }
            for _ in 0..2 {
                let found = ask(&instance, key.as_bytes(), windows, now);
                expect_denied(&format!("after {limit}"), found, [true, second])?;
            }
        }
    }
    Ok(())
}

fn exact_under_threads(subject: &Subject, id: &str) -> Result<(), String> {
    const THREADS: u64 = 16;
    const EACH: u64 = 25;
    const LIMIT: u64 = 150;
    let now = hour(subject);
    let instance = instance(subject, id)?;
    let windows = [burst(LIMIT, MINUTE, now), sustained(LIMIT + 1, HOUR, now)];
    let work = || {
        let mut admitted = 0;
        for _ in 0..EACH {
            match ask(&instance, b"key", &windows, now) {
                Verdict::Allowed { .. } => admitted += 1,
                Verdict::Denied { .. } => {}
                other @ (Verdict::NotEvaluated | Verdict::Failed(_)) => {
                    return Err(format!("answered {other:?}"));
                }
            }
        }
        Ok(admitted)
    };
    let mut admitted = 0_u64;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|_| std::thread::Builder::new().spawn_scoped(scope, work))
            .collect();
        for thread in threads {
            let thread = thread.map_err(|error| format!("no thread: {error}"))?;
            admitted += thread
                .join()
                .map_err(|_| "a thread panicked".to_owned())??;
        }
        Ok::<(), String>(())
    })?;
    expect("admitted", admitted, LIMIT)
}

fn denial_charges_nothing(subject: &Subject, id: &str) -> Result<(), String> {
    let now = hour(subject);
    let instance = instance(subject, id)?;
    // The burst window is exhausted: the sustained one must not move.
    let windows = [burst(1, MINUTE, now), sustained(10, HOUR, now)];
    expect(
        "a check",
        ask(&instance, b"a", &windows, now),
        allowed(1, 1),
    )?;
    for _ in 0..5 {
        expect_denied("burst", ask(&instance, b"a", &windows, now), [true, false])?;
    }
    let later = now + MINUTE;
    let windows = [burst(1, MINUTE, later), sustained(10, HOUR, later)];
    expect(
        "a minute later",
        ask(&instance, b"a", &windows, later),
        allowed(1, 2),
    )?;
    // And the other way round.
    let windows = [burst(10, MINUTE, now), sustained(1, HOUR, now)];
    expect(
        "a check",
        ask(&instance, b"b", &windows, now),
        allowed(1, 1),
    )?;
    for _ in 0..5 {
        expect_denied(
            "sustained",
            ask(&instance, b"b", &windows, now),
            [false, true],
        )?;
    }
    let windows = [burst(10, MINUTE, now), sustained(2, HOUR, now)];
    expect(
        "a raised limit",
        ask(&instance, b"b", &windows, now),
        allowed(2, 2),
    )
}

fn both_exhausted(subject: &Subject, id: &str) -> Result<(), String> {
    let now = hour(subject);
    let instance = instance(subject, id)?;
    let windows = [burst(2, MINUTE, now), sustained(2, HOUR, now)];
    for count in 1..=2 {
        expect(
            "a check",
            ask(&instance, b"key", &windows, now),
            allowed(count, count),
        )?;
    }
    expect_denied(
        "the third",
        ask(&instance, b"key", &windows, now),
        [true, true],
    )
}

fn used_counts(subject: &Subject, id: &str) -> Result<(), String> {
    let now = hour(subject);
    let instance = instance(subject, id)?;
    let windows = |now| [burst(3, MINUTE, now), sustained(10, HOUR, now)];
    for (minute, total) in [(0, 0), (1, 3)] {
        let now = now + minute * MINUTE;
        for count in 1..=3 {
            let found = ask(&instance, b"key", &windows(now), now);
            expect("a check", found, allowed(count, total + count))?;
        }
        match ask(&instance, b"key", &windows(now), now) {
            // A denial known locally may not know every count; one the store decided does.
            Verdict::Denied { local: true, .. } => {}
            Verdict::Denied { used, .. } => expect("used of a denial", used, [3, total + 3])?,
            other @ (Verdict::Allowed { .. } | Verdict::NotEvaluated | Verdict::Failed(_)) => {
                return Err(format!("expected a denial, found {other:?}"));
            }
        }
    }
    Ok(())
}

fn turns_exactly(subject: &Subject, id: &str) -> Result<(), String> {
    let start = hour(subject);
    let instance = instance(subject, id)?;
    let reset = start + MINUTE;
    for (now, expected) in [(start, 1), (reset - 1, 2), (reset, 1), (reset + 1, 2)] {
        let found = ask(&instance, b"key", &[burst(2, MINUTE, now)], now);
        expect(
            &format!("{} ms after the start", now - start),
            found,
            allowed(expected, 0),
        )?;
    }
    let now = reset + MINUTE - 1;
    let found = ask(&instance, b"key", &[burst(2, MINUTE, now)], now);
    expect_denied("at the last millisecond", found, [true, false])
}

fn burst_turns_alone(subject: &Subject, id: &str) -> Result<(), String> {
    let start = hour(subject);
    let instance = instance(subject, id)?;
    for minute in 0..5 {
        let now = start + minute * MINUTE;
        let windows = [burst(1, MINUTE, now), sustained(5, HOUR, now)];
        let found = ask(&instance, b"key", &windows, now);
        expect(&format!("minute {minute}"), found, allowed(1, minute + 1))?;
    }
    let now = start + 5 * MINUTE;
    let windows = [burst(1, MINUTE, now), sustained(5, HOUR, now)];
    expect_denied(
        "minute 5",
        ask(&instance, b"key", &windows, now),
        [false, true],
    )
}

fn one_window_only(subject: &Subject, id: &str) -> Result<(), String> {
    let now = hour(subject);
    let instance = instance(subject, id)?;
    // The same key with the same length: the kind alone keeps the counters apart.
    for one in [burst(1, MINUTE, now), sustained(1, MINUTE, now)] {
        expect(
            &format!("{:?}", one.kind),
            ask(&instance, b"key", &[one], now),
            allowed(1, 0),
        )?;
        expect_denied(
            &format!("{:?}", one.kind),
            ask(&instance, b"key", &[one], now),
            [true, false],
        )?;
    }
    Ok(())
}

fn limit_changes(subject: &Subject, id: &str) -> Result<(), String> {
    let now = hour(subject);
    let instance = instance(subject, id)?;
    for (limit, expected) in [
        (3, Some(1)),
        (3, Some(2)),
        (1, None),
        (3, Some(3)),
        (3, None),
        (5, Some(4)),
        (2, None),
    ] {
        let found = ask(&instance, b"key", &[burst(limit, HOUR, now)], now);
        match expected {
            Some(count) => expect(&format!("limit {limit}"), found, allowed(count, 0))?,
            None => expect_denied(&format!("limit {limit}"), found, [true, false])?,
        }
    }
    Ok(())
}

fn length_changes(subject: &Subject, id: &str) -> Result<(), String> {
    let now = hour(subject);
    let instance = instance(subject, id)?;
    let old = [burst(2, MINUTE, now)];
    let new = [burst(2, 2 * MINUTE, now)];
    expect(
        "the old length",
        ask(&instance, b"key", &old, now),
        allowed(1, 0),
    )?;
    expect(
        "the new length",
        ask(&instance, b"key", &new, now),
        allowed(1, 0),
    )?;
    expect(
        "the old length again",
        ask(&instance, b"key", &old, now),
        allowed(2, 0),
    )?;
    expect(
        "the new length again",
        ask(&instance, b"key", &new, now),
        allowed(2, 0),
    )?;
    expect_denied(
        "the old length at last",
        ask(&instance, b"key", &old, now),
        [true, false],
    )
}

fn keys_are_apart(subject: &Subject, id: &str) -> Result<(), String> {
    let now = hour(subject);
    let instance = instance(subject, id)?;
    let windows = [burst(1, HOUR, now)];
    let keys: [&[u8]; 8] = [
        b"a", b"ab", b"abc", b"abd", b"Abc", b"abc\0", b"\0abc", b"a:b",
    ];
    for key in keys {
        expect(
            &format!("{key:?}"),
            ask(&instance, key, &windows, now),
            allowed(1, 0),
        )?;
    }
    for key in keys {
        expect_denied(
            &format!("{key:?}"),
            ask(&instance, key, &windows, now),
            [true, false],
        )?;
    }
    Ok(())
}

fn any_bytes(subject: &Subject, id: &str) -> Result<(), String> {
    let now = hour(subject);
    let instance = instance(subject, id)?;
    let windows = [burst(1, HOUR, now)];
    let every_byte: Vec<u8> = (0..=u8::MAX).collect();
    let longest: Vec<u8> = (0..=u8::MAX).chain(0..=u8::MAX).collect();
    let mut other = longest.clone();
    if let Some(last) = other.last_mut() {
        *last = 0;
    }
    for key in [&every_byte, &longest, &other] {
        let what = format!("{} bytes", key.len());
        expect(&what, ask(&instance, key, &windows, now), allowed(1, 0))?;
        expect_denied(&what, ask(&instance, key, &windows, now), [true, false])?;
    }
    Ok(())
}

fn equal_hashes(subject: &Subject, id: &str) -> Result<(), String> {
    let now = hour(subject);
    let instance = instance(subject, id)?;
    let windows = [burst(1, HOUR, now)];
    for round in 0..2 {
        for key in [b"one", b"two"] {
            let same = Item {
                key,
                key_hash: 42,
                windows: &windows,
            };
            let found = ask_all(&instance, &[same], true, now);
            let found = found.first().copied().unwrap_or(Verdict::NotEvaluated);
            if round == 0 {
                expect("the first check", found, allowed(1, 0))?;
            } else {
                expect_denied("the second check", found, [true, false])?;
            }
        }
    }
    Ok(())
}

fn large_limits(subject: &Subject, id: &str) -> Result<(), String> {
    let now = hour(subject);
    let instance = instance(subject, id)?;
    for limit in [1, 1 << 31, (1 << 53) - 1, subject.plugin.max_limit()] {
        let windows = [burst(limit, MINUTE, now), sustained(limit, HOUR, now)];
        let key = limit.to_le_bytes();
        // Two of these may be the same number, and then the same key.
        match ask(&instance, &key, &windows, now) {
            Verdict::Allowed {
                used: [1 | 2, 1 | 2],
            } => {}
            other @ (Verdict::Allowed { .. }
            | Verdict::Denied { .. }
            | Verdict::NotEvaluated
            | Verdict::Failed(_)) => {
                return Err(format!("limit {limit}: {other:?}"));
            }
        }
    }
    Ok(())
}

fn clock_steps(subject: &Subject, id: &str) -> Result<(), String> {
    let start = hour(subject);
    let instance = instance(subject, id)?;
    let at = |key: &[u8], now| ask(&instance, key, &[burst(1, SECOND, now)], now);
    expect("a check", at(b"key", start + 1), allowed(1, 0))?;
    expect_denied("a millisecond back", at(b"key", start), [true, false])?;
    let window_back = at(b"key", start - 1);
    if subject.plugin.capabilities().shared() {
        expect(
            "one window back, counted for itself",
            window_back,
            allowed(1, 0),
        )?;
    } else {
        expect_denied(
            "one window back, counted in the stored one",
            window_back,
            [true, false],
        )?;
    }
    expect("an hour back", at(b"key", start - HOUR), allowed(1, 0))?;
    let ten_years = 10 * 365 * 24 * HOUR;
    expect(
        "ten years on",
        at(b"other", start + ten_years),
        allowed(1, 0),
    )
}

/// A small generator (`SplitMix64`): the seed is all there is to repeat a run.
struct Random(u64);

impl Random {
    const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Below `bound`, which is not 0.
    const fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

/// Counters as the contract describes them, for a clock that never steps back.
#[derive(Default)]
struct Model(HashMap<(u64, WindowKind, u64), (u64, u64)>);

impl Model {
    fn decide(&mut self, key: u64, windows: &[Window]) -> Verdict {
        let mut used = [0; 2];
        let mut exhausted = [false; 2];
        for (index, window) in windows.iter().enumerate().take(2) {
            let stored = self.0.get(&(key, window.kind, window.length_ms));
            let count = stored.filter(|(start, _)| *start == window.start_ms);
            used[index] = count.map_or(0, |(_, count)| *count);
            exhausted[index] = used[index] >= window.limit;
        }
        if exhausted != [false; 2] {
            return Verdict::Denied {
                exhausted,
                used,
                local: false,
            };
        }
        for (window, used) in windows.iter().zip(&mut used) {
            *used += 1;
            self.0.insert(
                (key, window.kind, window.length_ms),
                (window.start_ms, *used),
            );
        }
        Verdict::Allowed { used }
    }
}

fn like_the_model(subject: &Subject, id: &str) -> Result<(), String> {
    let seed = subject.now_unix_ms;
    let mut random = Random(seed);
    let mut model = Model::default();
    let instance = instance(subject, id)?;
    let mut now = hour(subject);
    let steps = if subject.plugin.capabilities().remote() {
        1_000
    } else {
        20_000
    };
    for step in 0..steps {
        now += [0, 0, 1, 300, 5_000][usize::try_from(random.below(5)).unwrap_or(0)];
        let key = random.below(4);
        let lengths = [2 * SECOND, 10 * SECOND];
        let length = lengths[usize::try_from(random.below(2)).unwrap_or(0)];
        let two = [
            burst(1 + random.below(4), length, now),
            sustained(1 + random.below(8), MINUTE, now),
        ];
        let windows = match random.below(4) {
            0 => &two[..1],
            1 => &two[1..],
            _ => &two[..],
        };
        let expected = model.decide(key, windows);
        let found = ask(&instance, &key.to_le_bytes(), windows, now);
        let what = format!("seed {seed}, step {step}");
        match expected {
            Verdict::Denied { exhausted, .. } => expect_denied(&what, found, exhausted)?,
            Verdict::Allowed { .. } | Verdict::NotEvaluated | Verdict::Failed(_) => {
                expect(&what, found, expected)?
            }
        }
    }
    Ok(())
}

fn capacity(subject: &Subject, id: &str) -> Result<(), String> {
    const MOST: u64 = 8;
    let now = hour(subject);
    let instance = instance_with(subject, id, |settings| settings.max_entries = MOST)?;
    if instance.health().capacity.is_none() {
        return Ok(());
    }
    expect("the capacity", instance.health().capacity, Some(MOST))?;
    let at = |key: u64, now| ask(&instance, &key.to_le_bytes(), &[burst(5, MINUTE, now)], now);
    let full = Verdict::Failed(BackendFailure::Unavailable);
    for key in 0..MOST {
        expect("a key that fits", at(key, now), allowed(1, 0))?;
    }
    expect("one key too many", at(MOST, now), full)?;
    for key in 0..MOST {
        expect("a known key", at(key, now), allowed(2, 0))?;
    }
    expect("at the last millisecond", at(MOST, now + MINUTE - 1), full)?;
    for key in MOST..2 * MOST {
        expect("after expiry", at(key, now + MINUTE), allowed(1, 0))?;
    }
    expect("full again", at(0, now + MINUTE), full)
}

fn resize(subject: &Subject, id: &str) -> Result<(), String> {
    let now = hour(subject);
    let instance = instance_with(subject, id, |settings| settings.max_entries = 2)?;
    if instance.health().capacity.is_none() {
        return Ok(());
    }
    let resize = |most| instance.resize(most).map_err(|error| error.to_string());
    let at = |key: u64| ask(&instance, &key.to_le_bytes(), &[burst(5, MINUTE, now)], now);
    let full = Verdict::Failed(BackendFailure::Unavailable);
    if !resize(2)? {
        return Err("it has a capacity and no `quota.resize/1`".to_owned());
    }
    for key in 0..2 {
        expect("a key that fits", at(key), allowed(1, 0))?;
    }
    expect("full", at(2), full)?;
    resize(3)?;
    expect("room at once", at(2), allowed(1, 0))?;
    resize(1)?;
    for key in 0..3 {
        expect("shrinking evicts nothing", at(key), allowed(2, 0))?;
    }
    expect("and admits nobody new", at(3), full)
}

fn batch_is_one_by_one(subject: &Subject, id: &str) -> Result<(), String> {
    let now = hour(subject);
    let mut random = Random(subject.now_unix_ms);
    let [together, singly] = [instance(subject, id)?, instance(subject, id)?];
    for round in 0..50 {
        let keys = [(); 3].map(|()| random.below(3).to_le_bytes());
        let windows = [(); 3].map(|()| {
            [
                burst(1 + random.below(6), MINUTE, now),
                sustained(1 + random.below(12), HOUR, now),
            ]
        });
        let pairs = keys.iter().zip(&windows);
        let items: Vec<_> = pairs
            .clone()
            .map(|(key, windows)| item(key, windows))
            .collect();
        let batch = ask_all(&together, &items, false, now);
        for ((found, (key, windows)), place) in batch.iter().zip(pairs).zip(0..) {
            let what = format!("round {round}, item {place}");
            match ask(&singly, key, windows, now) {
                Verdict::Denied { exhausted, .. } => expect_denied(&what, *found, exhausted)?,
                expected @ (Verdict::Allowed { .. }
                | Verdict::NotEvaluated
                | Verdict::Failed(_)) => {
                    expect(&what, *found, expected)?;
                }
            }
        }
        expect("the number of answers", batch.len(), 3)?;
    }
    Ok(())
}

/// Asks for one free, one exhausted and one free key.
fn with_a_denial_in_the_middle(
    instance: &Instance,
    stop: bool,
    now: u64,
) -> Result<[Verdict; 3], String> {
    let windows = [burst(1, HOUR, now)];
    expect("a check", ask(instance, b"b", &windows, now), allowed(1, 0))?;
    let items = [b"a", b"b", b"c"].map(|key| item(key, &windows));
    let found = ask_all(instance, &items, stop, now);
    <[Verdict; 3]>::try_from(found).map_err(|found| format!("three answers expected: {found:?}"))
}

fn stops_at_denial(subject: &Subject, id: &str) -> Result<(), String> {
    let now = hour(subject);
    let instance = instance(subject, id)?;
    let [first, second, third] = with_a_denial_in_the_middle(&instance, true, now)?;
    expect("the first", first, allowed(1, 0))?;
    expect_denied("the second", second, [true, false])?;
    expect("the third", third, Verdict::NotEvaluated)?;
    expect(
        "uncharged",
        ask(&instance, b"c", &[burst(1, HOUR, now)], now),
        allowed(1, 0),
    )
}

fn goes_on_without_stop(subject: &Subject, id: &str) -> Result<(), String> {
    let now = hour(subject);
    let instance = instance(subject, id)?;
    let [first, second, third] = with_a_denial_in_the_middle(&instance, false, now)?;
    expect("the first", first, allowed(1, 0))?;
    expect_denied("the second", second, [true, false])?;
    expect("the third", third, allowed(1, 0))
}

fn same_key_twice(subject: &Subject, id: &str) -> Result<(), String> {
    let now = hour(subject);
    let instance = instance(subject, id)?;
    let windows = [burst(2, HOUR, now)];
    let found = ask_all(&instance, &[item(b"key", &windows); 3], false, now);
    match found.as_slice() {
        [first, second, third] => {
            expect("the first", *first, allowed(1, 0))?;
            expect("the second", *second, allowed(2, 0))?;
            expect_denied("the third", *third, [true, false])
        }
        _ => Err(format!("three answers expected: {found:?}")),
    }
}

fn empty_batch(subject: &Subject, id: &str) -> Result<(), String> {
    let instance = instance(subject, id)?;
    expect(
        "answers",
        ask_all(&instance, &[], true, hour(subject)),
        Vec::new(),
    )
}

fn completes_once(subject: &Subject, id: &str) -> Result<(), String> {
    const CHECKS: u64 = 1_000;
    let now = hour(subject);
    let instance = instance(subject, id)?;
    let windows = [burst(CHECKS, HOUR, now)];
    for count in 1..=CHECKS {
        expect(
            "a check",
            ask(&instance, b"key", &windows, now),
            allowed(count, 0),
        )?;
    }
    expect("in flight", instance.health().inflight, 0)?;
    let faults = instance.faults();
    expect(
        "broken rules",
        [faults.late, faults.nonsense, faults.meaningless],
        [0; 3],
    )
}

fn past_deadline(subject: &Subject, id: &str) -> Result<(), String> {
    let now = hour(subject);
    let instance = instance(subject, id)?;
    let windows = [burst(1, HOUR, now)];
    let begun = Instant::now();
    let batch = instance.check_batch(&[item(b"key", &windows)], true, true, now, Some(begun));
    let found = batch.wait_until(Some(begun + Duration::from_millis(50)));
    expect(
        "the answer",
        found,
        vec![Verdict::Failed(BackendFailure::Timeout)],
    )?;
    let took = begun.elapsed();
    if took > SOON {
        return Err(format!("it took {took:?}"));
    }
    expect(
        "not charged",
        ask(&instance, b"key", &windows, now),
        allowed(1, 0),
    )
}

/// How soon a check past its deadline is answered, with room for a busy machine.
const SOON: Duration = Duration::from_secs(1);
