//! The word somebody surely meant: spelling distance first, then a table of synonyms.

/// What people write for a word of the policy file, and the word.
///
/// Only words that cannot be reached by spelling distance stand here.
const SYNONYMS: &[(&str, &str)] = &[
    ("limit", "requests"),
    ("rate", "requests"),
    ("max", "requests"),
    ("count", "requests"),
    ("max_requests", "requests"),
    ("window", "window_secs"),
    ("period", "window_secs"),
    ("interval", "window_secs"),
    ("seconds", "window_secs"),
    ("duration", "window_secs"),
    ("window_seconds", "window_secs"),
    ("limit", "burst"),
    ("limits", "burst"),
    ("rate_limit", "burst"),
    ("window", "burst"),
    ("windows", "burst"),
    ("quota", "burst"),
    ("long", "sustained"),
    ("steady", "sustained"),
    ("match", "route_allowlist"),
    ("key", "selector"),
    ("keys", "selector"),
    ("by", "selector"),
    ("identity", "selector"),
    ("dimensions", "selector"),
    ("ip", "client"),
    ("address", "client"),
    ("client_ip", "client"),
    ("peer_ip", "client"),
    ("api_key", "token"),
    ("bearer_token", "token"),
    ("account", "tenant"),
    ("customer", "tenant"),
    ("org", "tenant"),
    ("organization", "tenant"),
    ("routes", "route_allowlist"),
    ("allowlist", "route_allowlist"),
    ("id", "name"),
    ("source", "key"),
    ("from", "key"),
    ("shadow", "enforcement"),
    ("mode", "enforcement"),
    ("failure_policy", "backend_failure_policy"),
    ("on_failure", "backend_failure_policy"),
    ("fallback", "local_fallback"),
    ("rules", "policies"),
    ("policy", "policies"),
    ("limits", "policies"),
    ("prefix", "key_prefix"),
    ("capacity", "max_entries"),
    ("max_buckets", "max_entries"),
    ("type", "kind"),
    ("open", "fail_open"),
    ("closed", "fail_closed"),
    ("allow", "fail_open"),
    ("deny", "fail_closed"),
    ("dry_run", "shadow"),
    ("observe", "shadow"),
    ("ip", "client_ip"),
    ("remote_ip", "client_ip"),
    ("remote_addr", "client_ip"),
    ("source_ip", "client_ip"),
    ("address", "client_ip"),
    ("authorization", "bearer_token"),
    ("bearer", "bearer_token"),
    ("token", "bearer_token"),
    ("jwt", "bearer_token"),
    ("memory", "in_memory"),
    ("local", "in_memory"),
    ("valkey", "redis"),
];

/// The one of `candidates` that `word` most likely stands for, or `None`: the nearest by optimal string alignment within a
/// third of its length, case and `-` for `_` forgiven, else its synonym.
#[must_use]
pub fn nearest<'c>(
    word: &str,
    candidates: impl IntoIterator<Item = &'c str> + Clone,
) -> Option<&'c str> {
    nearest_by_spelling(word, candidates.clone()).or_else(|| {
        let folded = fold(word);
        let is_meant = |candidate: &&str| {
            SYNONYMS
                .iter()
                .any(|(synonym, meant)| *synonym == folded && meant == candidate)
        };
        candidates.into_iter().find(is_meant)
    })
}

/// As [`nearest`], without synonyms: the spelling alone.
#[must_use]
pub fn nearest_by_spelling<'c>(
    word: &str,
    candidates: impl IntoIterator<Item = &'c str>,
) -> Option<&'c str> {
    // Nothing we know is longer, and the distance is quadratic in the length.
    if word.len() > 64 {
        return None;
    }
    let folded = fold(word);
    let length = folded.chars().count();
    let allowed = |candidate: &str| candidate.len().max(3) / 3;
    candidates
        .into_iter()
        // The distance is never less than the difference of the lengths.
        .filter(|candidate| candidate.chars().count().abs_diff(length) <= allowed(candidate))
        .map(|candidate| (strsim::osa_distance(&folded, &fold(candidate)), candidate))
        .filter(|(distance, candidate)| *distance <= allowed(candidate))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

fn fold(word: &str) -> String {
    word.trim().to_ascii_lowercase().replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORDS: &[&str] = &["requests", "window_secs", "name", "client_ip", "policies"];

    #[track_caller]
    fn check(word: &str, expected: Option<&str>) {
        assert_eq!(nearest(word, WORDS.iter().copied()), expected);
    }

    #[test]
    fn spelling_comes_first_then_synonyms() {
        check("request", Some("requests"));
        check("Window-Secs", Some("window_secs"));
        check("polcies", Some("policies"));
        check("nmae", Some("name"));
        check("naïe", Some("name"));
        check("limit", Some("requests"));
        check("ip", Some("client_ip"));
        check("authorization", None);
        check("colour", None);
        check("", None);
        check(&"x".repeat(100_000), None);
    }

    #[test]
    fn every_synonym_is_folded_and_not_its_own_word() {
        for (synonym, meant) in SYNONYMS {
            assert_eq!(&fold(synonym), synonym);
            assert_ne!(synonym, meant);
        }
    }
}
