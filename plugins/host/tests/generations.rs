//! A process loads so many different libraries and no more: by itself, since it uses them all up.

use std::path::Path;
use std::process::Command;

use quota_plugin_host::{LoadRequest, MAX_GENERATIONS, Plugin, Refusal, SearchPath, generations};

#[test]
fn the_65th_content_is_refused_and_the_first_64_go_on() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("generations");
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("libquota_backend_demo.so");
    let output = Command::new("cc")
        .args(["-std=c11", "-shared", "-fPIC", "-I"])
        .arg(here.join("../abi/include"))
        .arg(here.join("tests/boundary/plugin.c"))
        .arg("-o")
        .arg(&file)
        .output()
        .unwrap_or_else(|error| {
            panic!("a C compiler named `cc` is needed for the loading tests: {error}")
        });
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let library = std::fs::read(&file).unwrap();
    let search = SearchPath::only(vec![folder]);
    let request = LoadRequest {
        search: &search,
        plugin: None,
        sha256: None,
    };
    // What follows the last section of a library means nothing to the loader and makes the content another.
    let load = |number: usize| {
        std::fs::write(&file, [&library[..], &number.to_le_bytes()].concat()).unwrap();
        Plugin::load("demo", &request)
    };
    for number in 1..=MAX_GENERATIONS {
        assert_eq!(load(number).unwrap().generation(), Some(number));
    }
    let error = load(MAX_GENERATIONS + 1).unwrap_err();
    let expected = Refusal::TooManyGenerations {
        limit: MAX_GENERATIONS,
    };
    assert_eq!(error.refusal(), Some(&expected));
    assert_eq!(load(1).unwrap().generation(), Some(1));
    assert_eq!(generations(), MAX_GENERATIONS);
}
