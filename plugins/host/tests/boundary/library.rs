//! Real libraries, compiled here with the C compiler: found, judged, loaded.
#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use quota_plugin_host::{
    LoadError, LoadRequest, Plugin, Refusal, SearchPath, Settings, Verdict, generations,
};
use serde_json::json;

use crate::zoo::{item, window};

/// A folder of one test's own, empty.
fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join("libraries")
        .join(name);
    if folder.exists() {
        fs::remove_dir_all(&folder).unwrap();
    }
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// Compiles the demo plugin with these definitions.
fn compile(to: &Path, definitions: &[&str]) {
    compile_with("include", to, definitions);
}

/// The same with the header in this folder of the ABI's package.
fn compile_with(header: &str, to: &Path, definitions: &[&str]) {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let output = Command::new("cc")
        .args([
            "-std=c11",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-shared",
            "-fPIC",
            "-fvisibility=hidden",
        ])
        .args(
            definitions
                .iter()
                .map(|definition| format!("-D{definition}")),
        )
        .arg("-I")
        .arg(here.join("../abi").join(header))
        .arg(here.join("tests/boundary/plugin.c"))
        .arg("-o")
        .arg(to)
        .output()
        .unwrap_or_else(|error| {
            panic!("a C compiler named `cc` is needed for the loading tests: {error}")
        });
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// A folder with one library of kind `demo`.
fn demo(name: &str, definitions: &[&str]) -> (PathBuf, PathBuf) {
    let folder = folder(name);
    let file = folder.join("libquota_backend_demo.so");
    let salt = format!("SALT=\"{name}\"");
    let definitions: Vec<&str> = definitions.iter().copied().chain([salt.as_str()]).collect();
    compile(&file, &definitions);
    (folder, file)
}

fn load_pinned(
    folder: &Path,
    plugin: Option<&str>,
    sha256: Option<&str>,
) -> Result<Plugin, LoadError> {
    let search = SearchPath::only(vec![folder.to_path_buf()]);
    let request = LoadRequest {
        search: &search,
        plugin,
        sha256,
    };
    Plugin::load("demo", &request)
}

fn load(folder: &Path) -> Result<Plugin, LoadError> {
    load_pinned(folder, None, None)
}

#[track_caller]
fn refused(result: Result<Plugin, LoadError>) -> Refusal {
    let error = result.unwrap_err();
    error.refusal().unwrap_or_else(|| panic!("{error}")).clone()
}

fn hex(digest: [u8; 32]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The tests that load count generations: one at a time.
static LOADING: Mutex<()> = Mutex::new(());

#[test]
fn a_c_plugin_is_loaded_and_decides() {
    let _alone = LOADING.lock();
    let (folder, file) = demo("decides", &[]);
    let plugin = load(&folder).unwrap();
    assert_eq!((plugin.kind(), plugin.name()), ("demo", "Demo"));
    assert_eq!(plugin.file(), Some(&*file.canonicalize().unwrap()));
    let instance = plugin.create(&Settings::default(), &json!({})).unwrap();
    let windows = [window(1)];
    assert_eq!(
        instance.check_one(&item(b"a", &windows), 42),
        Verdict::Allowed { used: [42, 0] }
    );
}

/// What vendors built with the first published header goes on working.
#[test]
fn a_plugin_built_with_the_header_of_version_1_0_is_loaded() {
    let _alone = LOADING.lock();
    let folder = folder("version 1.0");
    let file = folder.join("libquota_backend_demo.so");
    compile_with("tests/v1_0", &file, &["SALT=\"version 1.0\""]);
    let plugin = load(&folder).unwrap();
    assert_eq!(plugin.abi(), (1, 0));
    let instance = plugin.create(&Settings::default(), &json!({})).unwrap();
    assert_eq!(
        instance.check_one(&item(b"a", &[window(1)]), 42),
        Verdict::Allowed { used: [42, 0] }
    );
}

#[test]
fn the_same_content_is_one_generation_and_another_is_a_new_one() {
    let _alone = LOADING.lock();
    let (first_folder, first) = demo("same", &[]);
    let second_folder = folder("same again");
    fs::copy(&first, second_folder.join("libquota_backend_demo.so")).unwrap();
    let one = load(&first_folder).unwrap();
    let before = generations();
    let two = load(&second_folder).unwrap();
    assert_eq!(generations(), before);
    assert_eq!(
        (one.generation(), one.sha256()),
        (two.generation(), two.sha256())
    );
    assert_ne!(one.file(), two.file());
    // Overwritten in place, it is new code, and the old one goes on.
    compile(&first, &["SALT=\"other\""]);
    let three = load(&first_folder).unwrap();
    assert_eq!((one.version(), three.version()), ("same", "other"));
    assert_ne!(three.generation(), one.generation());
    assert_ne!(three.sha256(), one.sha256());
    assert_ne!(
        three.identity(&Settings::default(), &json!({})),
        one.identity(&Settings::default(), &json!({}))
    );
    assert!(one.create(&Settings::default(), &json!({})).is_ok());
}

#[test]
fn a_pin_admits_its_content_only() {
    let _alone = LOADING.lock();
    let (folder, _) = demo("pin", &[]);
    let digest = hex(load(&folder).unwrap().sha256().unwrap());
    assert!(load_pinned(&folder, None, Some(&digest.to_uppercase())).is_ok());
    let wrong = "ab".repeat(32);
    let expected = Refusal::Pin {
        expected: wrong.clone(),
        found: digest,
    };
    assert_eq!(refused(load_pinned(&folder, None, Some(&wrong))), expected);
    for broken in ["", "ab", &"xy".repeat(32), &"+1".repeat(32)] {
        let error = load_pinned(&folder, None, Some(broken)).unwrap_err();
        assert_eq!(error, LoadError::PinSetting(broken.to_owned()));
    }
}

#[test]
fn what_everyone_can_write_is_refused_with_the_command_that_helps() {
    let (folder, file) = demo("writable", &[]);
    let set =
        |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    let resolved = |path: &Path| path.canonicalize().unwrap().display().to_string();
    set(&file, 0o666);
    let reason = refused(load(&folder));
    assert_eq!(
        reason.to_string(),
        format!(
            "`{0}` can be written by everyone (mode 0666); fix it with `chmod o-w {0}`",
            resolved(&file)
        )
    );
    set(&file, 0o644);
    set(&folder, 0o777);
    let expected = Refusal::Writable {
        component: resolved(&folder),
        mode: 0o777,
    };
    assert_eq!(refused(load(&folder)), expected);
    // A link does not hide where it leads.
    let links = self::folder("links");
    symlink(&file, links.join("libquota_backend_demo.so")).unwrap();
    assert_eq!(refused(load(&links)), expected);
    // In a sticky folder nobody can replace another's file.
    set(&folder, 0o1777);
    let _alone = LOADING.lock();
    assert!(load(&links).is_ok());
    set(&folder, 0o775);
    let plugin = load(&folder).unwrap();
    assert!(
        plugin
            .warnings()
            .iter()
            .any(|w| w.contains("can be written by its group"))
    );
}

#[test]
fn what_is_no_plugin_is_refused() {
    let _alone = LOADING.lock();
    let text = folder("text");
    fs::write(
        text.join("libquota_backend_demo.so"),
        "this is no library\n",
    )
    .unwrap();
    assert!(matches!(refused(load(&text)), Refusal::NotLoadable { .. }));
    let (no_entry, _) = demo("no entry", &["NO_ENTRY"]);
    assert_eq!(refused(load(&no_entry)), Refusal::NoEntry);
    let (null, _) = demo("null table", &["NULL_TABLE"]);
    assert_eq!(refused(load(&null)), Refusal::NullTable);
    let directory = folder("directory");
    fs::create_dir(directory.join("libquota_backend_demo.so")).unwrap();
    assert_eq!(refused(load(&directory)), Refusal::NotRegular);
}

#[test]
fn a_library_that_breaks_a_rule_is_refused_the_same_way_twice() {
    let _alone = LOADING.lock();
    let (major, _) = demo("major", &["MAJOR=2"]);
    let expected = Refusal::Version {
        plugin_major: 2,
        plugin_minor: 0,
    };
    assert_eq!(refused(load(&major)), expected);
    let before = generations();
    assert_eq!(refused(load(&major)), expected);
    assert_eq!(generations(), before);
    let (foreign, _) = demo("foreign", &["FOREIGN"]);
    assert_eq!(
        refused(load(&foreign)),
        Refusal::ForeignFunction { name: "destroy" }
    );
}

#[test]
fn the_kind_must_be_the_same_everywhere() {
    let _alone = LOADING.lock();
    let (folder, file) = demo("kind", &["KIND=\"other\""]);
    let expected = Refusal::Kind {
        expected: "demo".to_owned(),
        found: "other".to_owned(),
    };
    assert_eq!(refused(load(&folder)), expected);
    let renamed = folder.join("libquota_backend_other.so");
    fs::rename(file, &renamed).unwrap();
    assert_eq!(
        refused(load_pinned(&folder, renamed.to_str(), None)),
        expected
    );
}

#[test]
fn the_first_file_counts_even_if_it_is_refused() {
    let _alone = LOADING.lock();
    let (good, file) = demo("good", &[]);
    let bad = folder("bad");
    fs::write(bad.join("libquota_backend_demo.so"), "no library").unwrap();
    let search = SearchPath::only(vec![bad, good]);
    let mut request = LoadRequest {
        search: &search,
        plugin: None,
        sha256: None,
    };
    assert!(matches!(
        refused(Plugin::load("demo", &request)),
        Refusal::NotLoadable { .. }
    ));
    assert_eq!(search.find("libquota_backend_demo.so").len(), 2);
    // An absolute path is not searched for.
    request.plugin = file.to_str();
    assert!(Plugin::load("demo", &request).is_ok());
}

#[test]
fn what_is_not_found_says_where_it_was_looked_for() {
    let (folder, _) = demo("elsewhere", &[]);
    let search = SearchPath::only(vec![folder.clone()]);
    let mut request = LoadRequest {
        search: &search,
        plugin: None,
        sha256: None,
    };
    let error = Plugin::load("dynamo", &request).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "no `libquota_backend_dynamo.so` in {}; kinds found there: demo",
            folder.display()
        )
    );
    assert_eq!(
        Plugin::load("../x", &request).unwrap_err(),
        LoadError::Kind("../x".to_owned())
    );
    for setting in ["", "../up.so", "a/b.so"] {
        request.plugin = Some(setting);
        let error = Plugin::load("demo", &request).unwrap_err();
        assert_eq!(error, LoadError::PluginSetting(setting.to_owned()));
    }
}

/// Runs itself once more, since the environment of a process with threads cannot be changed.
#[test]
fn folders_of_the_environment_come_after_the_given_ones() {
    const NAME: &str = "library::folders_of_the_environment_come_after_the_given_ones";
    if std::env::var_os("QUOTA_PLUGIN_PATH").is_none() {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", NAME])
            .env("QUOTA_PLUGIN_PATH", "/from/environment::/another")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && said.contains("1 passed"),
            "{said}"
        );
        return;
    }
    let beside = std::env::current_exe()
        .unwrap()
        .parent()
        .unwrap()
        .to_path_buf();
    let expected = [
        "/given".into(),
        "/from/environment".into(),
        "/another".into(),
        beside.clone(),
        beside.join("../lib/quota/plugins"),
        "/usr/local/lib/quota/plugins".into(),
        "/usr/lib/quota/plugins".into(),
    ];
    assert_eq!(SearchPath::new(vec!["/given".into()]).folders(), expected);
}
