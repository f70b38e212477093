//! Checks one policy file as `quotac check` would, or one file of policy test cases (`*_test.yaml`) as `quotac test` would: in
//! this process, on a machine that is the same for everyone, where two backend plugins and nothing else can be found.

use quota_compiler::Limits;
use quota_compiler::diagnostic::{Diagnostic, Severity};
use quota_plugin_host::SearchPath;
use quota_plugin_sdk::{
    Backend, Capabilities, Context, Decision, Diagnostics, Exported, Health, Item, abi,
};
use quota_runtime::backend::PluginKinds;
use quotac::cases::read;
use quotac::check::check_text;
use quotac::render::{FileReport, human, json};

/// Where the file `libquota_backend_ledger.so` lies, which is no library; relative, so that reports are the same everywhere.
const PLUGIN_DIR: &str = "ui/plugins";

/// The backend kinds of that machine.
pub(crate) fn kinds() -> PluginKinds {
    let search = SearchPath::only(vec![PLUGIN_DIR.into()]);
    let mut kinds = PluginKinds::new(Some(search)).expect("the linked-in backend is sound");
    kinds
        .register(&ACME)
        .expect("the backend of the tests is sound");
    kinds
}

/// A policy file as it was checked.
pub(crate) struct Case {
    report: FileReport,
}

impl Case {
    /// Checks `text`, the content of the file `name`, with the options it asks for.
    #[track_caller]
    pub(crate) fn check(name: &str, text: &[u8]) -> Self {
        let report = if name.ends_with("_test.yaml") {
            case_file_report(name, text)
        } else {
            policy_file_report(name, text)
        };
        Self { report }
    }

    /// Everything found.
    pub(crate) fn diagnostics(&self) -> &[Diagnostic] {
        &self.report.diagnostics
    }

    /// The codes of the errors and warnings, each once.
    pub(crate) fn faults(&self) -> Vec<&'static str> {
        let faults = self
            .diagnostics()
            .iter()
            .filter(|found| found.severity != Severity::Note);
        let mut codes: Vec<&str> = faults.map(|found| found.code.id).collect();
        codes.sort_unstable();
        codes.dedup();
        codes
    }

    /// The report for people, without colours.
    pub(crate) fn human(&self) -> String {
        anstream::adapter::strip_str(&human::render(std::slice::from_ref(&self.report))).to_string()
    }

    /// The report for programs.
    pub(crate) fn json(&self) -> String {
        json::render(std::slice::from_ref(&self.report)).expect("a report is JSON")
    }
}

#[track_caller]
fn policy_file_report(name: &str, text: &[u8]) -> FileReport {
    let options = Options::of(text);
    let kinds = if options.no_plugins {
        PluginKinds::new(None).expect("the linked-in backend is sound")
    } else {
        kinds()
    };
    check_text(name, text, options.limits, &kinds, options.deny_warnings)
}

/// What `quotac test` says of a case file before it runs any case.
fn case_file_report(name: &str, text: &[u8]) -> FileReport {
    let (text, diagnostics) = match read::read(name, text, Limits::default()) {
        Ok(file) => (file.text, Vec::new()),
        Err(unreadable) => (unreadable.text, unreadable.diagnostics),
    };
    FileReport {
        ok: diagnostics.is_empty(),
        program_digest: None,
        text,
        diagnostics,
    }
}

/// What the first line of a policy file may ask for: `# quotac check [OPTION]… PATH`.
#[derive(Default)]
struct Options {
    limits: Limits,
    deny_warnings: bool,
    no_plugins: bool,
}

impl Options {
    #[track_caller]
    fn of(text: &[u8]) -> Self {
        let mut options = Self::default();
        let line = text.split(|byte| *byte == b'\n').next().unwrap_or_default();
        let Some(line) = line.strip_prefix(b"# quotac check ") else {
            return options;
        };
        let line = str::from_utf8(line).expect("options are UTF-8");
        let mut words = line.split_whitespace().peekable();
        while let Some(word) = words.next() {
            let mut number = || {
                words
                    .next()
                    .and_then(|word| word.parse().ok())
                    .expect("the option takes a number")
            };
            match word {
                "--max-bytes" => options.limits.max_bytes = number(),
                "--max-events" => options.limits.max_events = number(),
                "--deny-warnings" => options.deny_warnings = true,
                "--no-plugins" => options.no_plugins = true,
                _ if words.peek().is_none() && !word.starts_with('-') => {}
                _ => panic!("`{word}` is no option a case may ask for"),
            }
        }
        options
    }
}

/// The table of the backend kind `acme`, which stands for a third party's: remote, with options of its own.
static ACME: abi::quota_plugin = Exported::<Acme>::TABLE;

/// It has options, and no more: nothing is decided in this suite.
struct Acme;

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct AcmeOptions {
    region: String,
    shards: Option<u32>,
}

impl Backend for Acme {
    const KIND: &'static str = "acme";
    const NAME: &'static str = "Acme counters";
    const VERSION: &'static str = "1.0.0";
    const VENDOR: &'static str = "Acme";
    const CAPABILITIES: Capabilities = Capabilities::BLOCKING.remote();
    const OPTIONS_SCHEMA: &'static str = r#"{
        "type": "object",
        "properties": {
            "region": {"type": "string"},
            "shards": {"type": "integer", "minimum": 1}
        },
        "required": ["region"],
        "additionalProperties": false
    }"#;

    type Options = AcmeOptions;

    fn validate(options: &AcmeOptions, diagnostics: &mut Diagnostics) {
        if !["north", "south"].contains(&options.region.as_str()) {
            diagnostics.error("unknown-region", "/region", "there is no such region");
            diagnostics.help("the regions are `north` and `south`");
        }
        match options.shards {
            Some(0) => {
                diagnostics.error("no-shards", "/shards", "counters need at least one shard")
            }
            Some(1) => diagnostics.warning("one-shard", "/shards", "one shard survives no failure"),
            Some(_) | None => {}
        }
    }

    fn create(_: Context<'_, AcmeOptions>) -> Result<Self, Diagnostics> {
        Ok(Self)
    }

    fn check(&self, _: &Item<'_>, _: u64) -> Decision {
        Decision::Allowed { used: [1, 1] }
    }

    fn health(&self) -> Health {
        Health::default()
    }
}
