//! Tables that break a rule are refused, with the reason.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use quota_plugin_abi::{QUOTA_CAP_BLOCKING, QUOTA_CAP_INLINE, quota_plugin, quota_str};
use quota_plugin_host::{LoadError, Plugin, Refusal};

use crate::zoo::{ASYNC, INLINE, plugin};

#[track_caller]
fn check(table: quota_plugin, expected: &str) {
    let refused = Plugin::builtin(Box::leak(Box::new(table))).unwrap_err();
    let reason = refused.refusal().unwrap().to_string();
    assert!(reason.contains(expected), "{reason}");
}

#[test]
fn a_good_table_is_described() {
    let zoo = plugin(INLINE);
    assert_eq!(
        (zoo.kind(), zoo.name(), zoo.version(), zoo.vendor()),
        ("zoo", "Zoo", "1.2.3", "tests")
    );
    assert_eq!(zoo.abi(), (1, 0));
    assert_eq!(
        (zoo.file(), zoo.sha256(), zoo.generation()),
        (None, None, None)
    );
    assert!(zoo.capabilities().inline() && !zoo.capabilities().remote());
    assert_eq!(zoo.max_batch(), None);
    assert_eq!(
        zoo.options_schema()["properties"]["mode"]["default"],
        "honest"
    );
}

#[test]
fn another_magic_number_is_refused() {
    check(
        quota_plugin { magic: 7, ..INLINE },
        "does not begin with `QUOTAPLG`",
    );
}

#[test]
fn another_major_version_is_refused_with_both_numbers() {
    let table = quota_plugin {
        abi_major: 2,
        abi_minor: 3,
        ..INLINE
    };
    check(
        table,
        "it speaks plugin ABI 2.3, this program 1.0: rebuild it with quota-plugin-sdk ",
    );
}

#[test]
fn a_newer_minor_version_is_used_as_far_as_it_is_known() {
    let newer = quota_plugin {
        abi_minor: 9,
        struct_size: INLINE.struct_size + 64,
        ..INLINE
    };
    assert_eq!(plugin(newer).abi(), (1, 9));
}

#[test]
fn a_table_smaller_than_version_1_0_is_refused() {
    let table = quota_plugin {
        struct_size: 208,
        ..INLINE
    };
    check(table, "its table has 208 bytes, version 1.0 of the ABI 216");
}

#[test]
fn required_functions_must_be_there() {
    check(
        quota_plugin {
            validate: None,
            ..INLINE
        },
        "`validate` is required",
    );
    check(
        quota_plugin {
            create: None,
            ..INLINE
        },
        "`create` is required",
    );
    check(
        quota_plugin {
            health: None,
            ..INLINE
        },
        "`health` is required",
    );
    check(
        quota_plugin {
            drain: None,
            ..INLINE
        },
        "`drain` is required",
    );
    check(
        quota_plugin {
            destroy: None,
            ..INLINE
        },
        "`destroy` is required",
    );
    check(
        quota_plugin {
            get_extension: None,
            ..INLINE
        },
        "`get_extension` is required",
    );
    check(
        quota_plugin {
            check_one: None,
            ..INLINE
        },
        "`check_one` is required",
    );
    check(
        quota_plugin {
            check: None,
            ..ASYNC
        },
        "`check` is required",
    );
}

#[test]
fn impossible_descriptions_are_refused() {
    let both = QUOTA_CAP_INLINE | QUOTA_CAP_BLOCKING;
    check(
        quota_plugin {
            capabilities: both,
            ..INLINE
        },
        "both INLINE and BLOCKING",
    );
    check(
        quota_plugin {
            max_limit: 1_000,
            ..INLINE
        },
        "max_limit is 1000",
    );
    check(
        quota_plugin {
            max_key_len: 511,
            ..INLINE
        },
        "max_key_len is 511",
    );
    check(
        quota_plugin {
            kind: quota_str::new("Zoo!"),
            ..INLINE
        },
        "kind `Zoo!`",
    );
    check(
        quota_plugin {
            name: quota_str::from_bytes(b"\xff"),
            ..INLINE
        },
        "name is not UTF-8",
    );
    let null = quota_str {
        ptr: std::ptr::null(),
        len: 3,
    };
    check(
        quota_plugin {
            vendor: null,
            ..INLINE
        },
        "vendor is null, with a length",
    );
}

#[test]
fn a_broken_schema_is_the_plugins_fault() {
    let table = quota_plugin {
        options_schema: quota_str::new(r#"{"type": "object", "oneOf": []}"#),
        ..INLINE
    };
    check(
        table,
        "a fault of the plugin: `/oneOf` is not a keyword of the subset",
    );
    let refused = Plugin::builtin(Box::leak(Box::new(table))).unwrap_err();
    assert!(matches!(
        refused,
        LoadError::Refused {
            file: None,
            reason: Refusal::Schema { .. }
        }
    ));
}
