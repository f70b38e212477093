//! Windows: at least one, positive and bounded, a limit the backend can count, the burst window strictly shorter.

use std::num::{NonZeroU32, NonZeroU64};

use super::backend::Ceiling;
use super::{Field, Findings, fault_of};
use crate::codes;
use crate::diagnostic::Diagnostic;
use crate::ir::{MAX_WINDOW_SECS, Window, Windows};
use crate::syntax::raw::{Given, RawPolicy, RawWindow, Spanned};
use crate::terms::WindowKind;

/// The windows of `policy`; `None` when a part of them was reported.
pub(super) fn check(
    policy: &Spanned<RawPolicy>,
    field: &Field<'_>,
    ceiling: Option<&Ceiling<'_>>,
    findings: &mut Findings<'_>,
) -> Option<Windows> {
    let raw = &policy.value;
    if raw.burst.is_absent() && raw.sustained.is_absent() {
        let place = findings.first_line(policy.span);
        findings.report(
            Diagnostic::new(
                &codes::NO_WINDOW,
                field.to_string(),
                place,
                "policy has neither a `burst` nor a `sustained` window",
            )
            .with_help("add one, such as `burst: { requests: 10, window_secs: 1 }`"),
        );
        return None;
    }
    let mut window = |given, kind: WindowKind| {
        check_window(given, &field.field(kind.as_str()), ceiling, findings)
    };
    let burst = window(&raw.burst, WindowKind::Burst);
    let sustained = window(&raw.sustained, WindowKind::Sustained);
    if let (Some(burst), Some(sustained)) = (burst.length, sustained.length)
        && burst.secs >= sustained.secs
    {
        burst_not_shorter(raw, burst, sustained, field, findings);
        return None;
    }
    Windows::new(burst.built(&raw.burst)?, sustained.built(&raw.sustained)?).ok()
}

/// The sound parts of one window.
#[derive(Clone, Copy, Default)]
struct Parts<'a> {
    requests: Option<NonZeroU64>,
    length: Option<Length<'a>>,
}

/// A sound window length and where it stands.
#[derive(Clone, Copy)]
struct Length<'a> {
    secs: NonZeroU32,
    given: &'a Spanned<u64>,
}

impl Parts<'_> {
    /// The window of `given`, `Some(None)` where there is none; `None` when a part was reported.
    fn built(self, given: &Given<RawWindow>) -> Option<Option<Window>> {
        match given {
            Given::Absent => Some(None),
            Given::Faulty => None,
            Given::Value { .. } => Some(Some(Window {
                requests: self.requests?,
                length_secs: self.length?.secs,
            })),
        }
    }
}

fn check_window<'a>(
    given: &'a Given<RawWindow>,
    field: &Field<'_>,
    ceiling: Option<&Ceiling<'_>>,
    findings: &mut Findings<'_>,
) -> Parts<'a> {
    let Some(window) = given.value() else {
        return Parts::default();
    };
    let requests = window.value.requests.value();
    let length = window.value.window_secs.value();
    Parts {
        requests: requests.and_then(|given| check_requests(given, field, ceiling, findings)),
        length: length.and_then(|given| check_length(given, field, findings)),
    }
}

fn check_requests(
    given: &Spanned<u64>,
    window: &Field<'_>,
    ceiling: Option<&Ceiling<'_>>,
    findings: &mut Findings<'_>,
) -> Option<NonZeroU64> {
    let field = window.field("requests");
    let Some(requests) = NonZeroU64::new(given.value) else {
        let fault = fault_of(
            &codes::ZERO_REQUESTS,
            &field,
            given,
            "limit of 0 requests admits nothing",
        );
        findings.report(fault.with_help("give a limit of at least 1, or remove the window"));
        return None;
    };
    let ceiling = ceiling.filter(|ceiling| requests.get() > ceiling.max_requests);
    let Some(ceiling) = ceiling else {
        return Some(requests);
    };
    let fault = fault_of(
        &codes::LIMIT_BEYOND_BACKEND,
        &field,
        given,
        format!(
            "limit of {requests} requests is more than backend `{}` can count",
            ceiling.kind
        ),
    )
    .with_related(
        ceiling.place,
        format!(
            "backend `{}` counts to {}",
            ceiling.kind, ceiling.max_requests
        ),
    )
    .with_help(format!("give a limit of at most {}", ceiling.max_requests));
    findings.report(fault);
    None
}

fn check_length<'a>(
    given: &'a Spanned<u64>,
    window: &Field<'_>,
    findings: &mut Findings<'_>,
) -> Option<Length<'a>> {
    let field = window.field("window_secs");
    if given.value > u64::from(MAX_WINDOW_SECS) {
        let fault = fault_of(
            &codes::WINDOW_TOO_LONG,
            &field,
            given,
            format!("window of {} s is longer than 100 years", given.value),
        )
        .with_help(format!(
            "give a length of at most {MAX_WINDOW_SECS} seconds"
        ));
        findings.report(fault);
        return None;
    }
    let secs = u32::try_from(given.value).ok().and_then(NonZeroU32::new);
    if secs.is_none() {
        let fault = fault_of(
            &codes::ZERO_WINDOW,
            &field,
            given,
            "window of 0 s has no length",
        );
        findings.report(fault.with_help("give a length of at least 1 second"));
    }
    secs.map(|secs| Length { secs, given })
}

fn burst_not_shorter(
    raw: &RawPolicy,
    burst: Length<'_>,
    sustained: Length<'_>,
    policy: &Field<'_>,
    findings: &mut Findings<'_>,
) {
    let window = policy.field(WindowKind::Burst.as_str());
    let mut fault = fault_of(
        &codes::BURST_NOT_SHORTER,
        &window.field("window_secs"),
        burst.given,
        format!(
            "burst window of {} s is not shorter than the sustained window of {} s",
            burst.secs, sustained.secs
        ),
    );
    // One anchored window may stand for both: then the places to tell apart are those where it is used.
    let mut second = sustained.given.span;
    if second == fault.span
        && let (Some(burst), Some(sustained)) = (raw.burst.value(), raw.sustained.value())
    {
        fault.span = findings.first_line(burst.span);
        second = findings.first_line(sustained.span);
    }
    let help = match sustained.secs.get() {
        1 => "make the sustained window longer than the burst window, or remove one of the two"
            .to_owned(),
        secs => format!(
            "give the burst window at most {} s, or remove one of the two",
            secs - 1
        ),
    };
    findings.report(
        fault
            .with_related(second, format!("sustained window of {} s", sustained.secs))
            .with_help(help),
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::tests::{check, fault, sound};

    fn policy(windows: &str) -> String {
        format!("policies:\n- name: a\n  selector: {{route: true}}\n{windows}")
    }

    fn secs(burst: u64, sustained: u64) -> String {
        policy(&format!(
            "  burst: {{requests: 1, window_secs: {burst}}}\n  sustained: {{requests: 1, window_secs: {sustained}}}\n"
        ))
    }

    #[test]
    fn a_policy_needs_a_window() {
        check(&policy(""), &[("Q0502", 2, 3)]);
        check(
            &policy("  burst: ~\n  sustained: null\n"),
            &[("Q0502", 2, 3)],
        );
        check(&policy("  burst: 7\n"), &[("Q0203", 4, 10)]);
    }

    #[test]
    fn limits_and_lengths_are_positive() {
        check(
            &policy("  burst: {requests: 0, window_secs: 0}\n"),
            &[("Q0503", 4, 21), ("Q0504", 4, 37)],
        );
        check(
            &policy("  sustained: {requests: 0, window_secs: 1}\n"),
            &[("Q0503", 4, 25)],
        );
    }

    #[test]
    fn a_window_lasts_at_most_100_years() {
        check(
            &policy("  burst: {requests: 1, window_secs: 3153600000}\n"),
            &[],
        );
        check(
            &policy("  burst: {requests: 1, window_secs: 3153600001}\n"),
            &[("Q0505", 4, 37)],
        );
        check(
            &policy("  burst: {requests: 1, window_secs: 18446744073709551615}\n"),
            &[("Q0505", 4, 37)],
        );
    }

    #[test]
    fn a_burst_window_is_strictly_shorter() {
        check(&secs(59, 60), &[]);
        check(&secs(60, 60), &[("Q0501", 4, 37)]);
        check(&secs(61, 60), &[("Q0501", 4, 37)]);
        check(
            &policy(
                "  sustained: {requests: 9, window_secs: 60}\n  burst: {requests: 1, window_secs: 60}\n",
            ),
            &[("Q0501", 5, 37)],
        );
    }

    #[test]
    fn two_windows_that_disagree_are_both_pointed_at() {
        let (field, text, message, related, help) = fault(&secs(60, 60));
        assert_eq!(field, "policies[0].burst.window_secs");
        assert_eq!(text, "60");
        assert_eq!(
            message,
            "burst window of 60 s is not shorter than the sustained window of 60 s"
        );
        assert_eq!(related, ["60"]);
        assert_eq!(
            help,
            "give the burst window at most 59 s, or remove one of the two"
        );
    }

    #[test]
    fn one_anchored_window_in_both_places_is_pointed_at_where_it_is_used() {
        let (_, text, _, related, _) = fault(&policy(
            "  burst: &w {requests: 1, window_secs: 60}\n  sustained: *w\n",
        ));
        assert_eq!(text, "{requests: 1, window_secs: 60}");
        assert_eq!(related, ["*w"]);
    }

    #[test]
    fn a_length_at_fault_is_not_compared() {
        check(&secs(60, 0), &[("Q0504", 5, 41)]);
        check(&secs(3_153_600_001, 60), &[("Q0505", 4, 37)]);
        check(
            &policy(
                "  burst: {requests: 1, window_secs: 60}\n  sustained: {requests: 1, window_secs: -1}\n",
            ),
            &[("Q0206", 5, 41)],
        );
        check(
            &policy("  burst: {requests: 1, window_secs: 60}\n  sustained: {requests: 1}\n"),
            &[("Q0204", 5, 14)],
        );
    }

    #[test]
    fn a_limit_at_fault_leaves_the_lengths_to_compare() {
        check(
            &policy(
                "  burst: {requests: 0, window_secs: 60}\n  sustained: {requests: 1, window_secs: 60}\n",
            ),
            &[("Q0503", 4, 21), ("Q0501", 4, 37)],
        );
    }

    #[test]
    fn a_limit_fits_what_the_backend_counts() {
        let with = |backend: &str, requests: u64| {
            format!(
                "{backend}\n{}",
                policy(&format!(
                    "  burst: {{requests: {requests}, window_secs: 1}}\n"
                ))
            )
        };
        let redis = "backend: {kind: redis, url: redis://h}";
        check(&with(redis, 9_007_199_254_740_991), &[]);
        check(&with(redis, 9_007_199_254_740_992), &[("Q0506", 5, 21)]);
        check(&with("backend: {kind: in_memory}", u64::MAX), &[]);
        check(&with("", u64::MAX), &[]);
        let (_, text, message, related, help) = fault(&with(redis, u64::MAX));
        assert_eq!(text, "18446744073709551615");
        assert_eq!(
            message,
            "limit of 18446744073709551615 requests is more than backend `redis` can count"
        );
        assert_eq!(related, ["redis"]);
        assert_eq!(help, "give a limit of at most 9007199254740991");
    }

    #[test]
    fn sound_windows_arrive() {
        let quota = sound(&policy(
            "  burst: {requests: 0x10, window_secs: +5}\n  sustained: {requests: 100, window_secs: 60}\n",
        ));
        let windows: Vec<_> = quota
            .policies
            .iter()
            .flat_map(|policy| policy.windows.iter())
            .map(|(kind, window)| (kind, window.requests.get(), window.length_secs.get()))
            .collect();
        assert_eq!(
            windows,
            [(WindowKind::Burst, 16, 5), (WindowKind::Sustained, 100, 60)]
        );
    }
}
