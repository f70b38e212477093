//! The rules of the contract that no case can speak of, and the test that holds each.

use std::fs;
use std::path::Path;

/// Rule, file, test.
const ELSEWHERE: &[(&str, &str, &str)] = &[
    (
        "§2 the quota object's place",
        "compiler/src/syntax/tests.rs",
        "the_quota_object_is_found_where_the_contract_says",
    ),
    (
        "§2 unknown fields, types, numbers",
        "compiler/src/syntax/tests.rs",
        "every_fault_of_a_file_is_reported_in_one_run",
    ),
    (
        "§2 a disabled file is checked",
        "compiler/src/check/mod.rs",
        "a_disabled_file_is_checked_all_the_same",
    ),
    (
        "§2 enabled needs a policy",
        "compiler/src/check/mod.rs",
        "enabled_needs_a_policy",
    ),
    (
        "§2 fields of kinds",
        "compiler/src/check/backend.rs",
        "fields_belong_to_kinds",
    ),
    (
        "§2 unchecked options are a note",
        "compiler/src/check/backend.rs",
        "options_nobody_checked_are_noted",
    ),
    (
        "§2 variables are not expanded",
        "compiler/src/syntax/tests.rs",
        "variables_are_the_only_fault_where_they_stand",
    ),
    (
        "§2.1 burst is strictly shorter",
        "compiler/src/check/window.rs",
        "a_burst_window_is_strictly_shorter",
    ),
    (
        "§2.2 a source fills one dimension",
        "compiler/src/check/selector.rs",
        "a_source_fills_one_dimension_only",
    ),
    (
        "§2.3 sources and dimensions",
        "compiler/src/check/selector.rs",
        "sources_are_legal_where_the_matrix_says",
    ),
    (
        "§2.4 unique names",
        "compiler/src/check/policy.rs",
        "names_are_unique_after_trimming_and_case_sensitive",
    ),
    (
        "§2.4 unique contracts",
        "compiler/src/check/policy.rs",
        "contracts_are_compared_by_what_they_mean",
    ),
    (
        "§2.5 a fallback needs a remote backend",
        "compiler/src/check/backend.rs",
        "a_fallback_stands_beside_a_remote_backend",
    ),
    (
        "§2.6 limits the backend can count",
        "compiler/src/check/window.rs",
        "a_limit_fits_what_the_backend_counts",
    ),
    (
        "§2.7 the meaning of YAML",
        "compiler/src/syntax/tests.rs",
        "both_readers_agree_on_mutated_texts",
    ),
    (
        "§2.7 merge keys",
        "compiler/src/syntax/tests.rs",
        "merge_keys_are_refused_at_every_level",
    ),
    (
        "§2.7 one document",
        "compiler/src/syntax/tests.rs",
        "one_document_is_all_there_may_be",
    ),
    (
        "§2.8 equal prefixes are a warning",
        "compiler/src/check/backend.rs",
        "a_shared_prefix_is_warned_of",
    ),
    (
        "§4 trusted proxies",
        "runtime/src/client_address.rs",
        "a_trusted_peer_that_names_nobody_leaves_the_client_unknown",
    ),
    (
        "§4 identities appear nowhere",
        "tests/e2e/admin.rs",
        "no_identity_is_told_anywhere",
    ),
    (
        "§5 the bytes of a key",
        "compiler/src/program/key.rs",
        "components_are_tagged_and_length_prefixed",
    ),
    (
        "§5 no two identities share a key",
        "runtime/src/key.rs",
        "no_two_identities_share_a_key",
    ),
    (
        "§5 what keeps a counter",
        "runtime/tests/reload.rs",
        "what_is_no_part_of_a_counter_changes_without_touching_it",
    ),
    (
        "§5 a limit keeps its counter",
        "runtime/tests/reload.rs",
        "a_limit_raised_or_lowered_keeps_what_is_used",
    ),
    (
        "§5 another length starts afresh",
        "runtime/tests/reload.rs",
        "what_is_part_of_a_counter_starts_it_afresh",
    ),
    (
        "§5 another prefix starts afresh",
        "runtime/tests/reload.rs",
        "another_key_prefix_starts_afresh",
    ),
    (
        "§5 the fallback's counters stay",
        "runtime/tests/dispatch.rs",
        "a_fallback_counts_and_denies_on_its_own_and_survives_a_reload",
    ),
    (
        "§5 decisions in flight",
        "plugins/in_memory/src/store.rs",
        "another_length_starts_fresh_and_leaves_the_former_alone",
    ),
    (
        "§6 atomic under threads",
        "plugins/in_memory/src/store.rs",
        "threads_on_one_key_are_admitted_exactly_to_the_limit",
    ),
    (
        "§6 no clock makes it panic",
        "plugins/in_memory/src/store.rs",
        "extreme_numbers_do_no_harm",
    ),
    (
        "§7 the bound under threads",
        "plugins/in_memory/src/store.rs",
        "threads_with_new_keys_fill_a_store_exactly_again_and_again",
    ),
    (
        "§7 max_inflight",
        "runtime/tests/dispatch.rs",
        "requests_beyond_max_inflight_are_refused_at_once",
    ),
    (
        "§7 a timer that runs out",
        "runtime/tests/dispatch.rs",
        "checks_that_travel_alone_time_out_alone",
    ),
    (
        "§7 a trip that times out",
        "runtime/tests/dispatch.rs",
        "checks_that_travel_together_time_out_together_and_late_answers_do_nothing",
    ),
    (
        "§7 a denial repeated locally",
        "runtime/tests/dispatch.rs",
        "a_repeated_denial_moves_no_health",
    ),
    (
        "§8 the daemon's own limits",
        "tests/e2e/protection.rs",
        "a_flood_of_connections_is_bounded_while_decisions_go_on",
    ),
    (
        "§8 answers that are no verdict",
        "runtime/quotad/src/http.rs",
        "unknown_paths_are_no_verdict",
    ),
    (
        "§9 outcomes and health",
        "tests/e2e/admin.rs",
        "outcomes_and_health_are_counted_with_their_labels",
    ),
    (
        "§9 HELP and TYPE before samples",
        "tests/e2e/admin.rs",
        "every_family_is_described_before_its_first_sample",
    ),
    (
        "§9 the admin view",
        "tests/e2e/admin.rs",
        "the_runtime_view_has_the_whole_quota_object",
    ),
    (
        "§9 recent errors",
        "runtime/src/health.rs",
        "the_newest_eight_errors_are_kept_newest_first",
    ),
    (
        "§9 health of a new backend",
        "runtime/tests/dispatch.rs",
        "another_backend_starts_its_health_afresh_and_the_former_one_ends",
    ),
    (
        "§9 no credentials",
        "runtime/tests/dispatch.rs",
        "the_status_names_everything_but_credentials",
    ),
    (
        "§9 series of removed policies",
        "tests/e2e/reload.rs",
        "series_of_removed_policies_are_dropped_and_those_of_others_go_on",
    ),
];

#[test]
fn the_tests_named_are_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    for (rule, file, test) in ELSEWHERE {
        let text =
            fs::read_to_string(root.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
        assert!(
            text.contains(&format!("fn {test}(")),
            "{rule}: {file} has no {test}"
        );
    }
}
