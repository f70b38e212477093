//! What conformance cases run on, beside the [model](crate::model): the engine with `in_memory` linked in, with `in_memory` loaded
//! through `dlopen`, and with a remote backend that a stand-in plays.

use quotac::cases::engine::{Engine, OpenEngine};
use quotac::cases::run::{Executor, NotOpened};
use serde_yaml::{Mapping, Value};

use crate::commands::built;
use crate::model::{Model, OpenModel};

/// The engine on the library `libquota_backend_in_memory.so`, loaded as any plugin. Only for policies that count in memory.
#[derive(Clone, Debug, Default)]
pub struct Loaded(Engine);

impl Executor for Loaded {
    type Open = OpenEngine;

    fn open(&self, name: &str, bytes: &[u8]) -> Result<OpenEngine, NotOpened> {
        let library = built().in_memory.display().to_string();
        let text = with_backend(bytes, |backend| {
            backend.entry("kind".into()).or_insert("in_memory".into());
            backend.insert("plugin".into(), library.into());
        });
        self.0.open(name, text.as_bytes())
    }
}

/// The engine on a stand-in for a remote backend. Only for policies that name no backend.
#[derive(Clone, Debug, Default)]
pub struct Remote(Engine);

impl Executor for Remote {
    type Open = OpenEngine;

    fn open(&self, name: &str, bytes: &[u8]) -> Result<OpenEngine, NotOpened> {
        self.0.open(name, on_redis(bytes).as_bytes())
    }
}

/// The model of a remote backend. Only for policies that name no backend.
#[derive(Clone, Copy, Debug, Default)]
pub struct RemoteModel;

impl Executor for RemoteModel {
    type Open = OpenModel;

    fn open(&self, name: &str, bytes: &[u8]) -> Result<OpenModel, NotOpened> {
        Model.open(name, on_redis(bytes).as_bytes())
    }
}

/// The kind of backend the policy text names, if it names one.
///
/// # Panics
///
/// The text is no policy file.
#[must_use]
pub fn backend_kind(bytes: &[u8]) -> Option<String> {
    let mut file: Value = serde_yaml::from_slice(bytes).expect("conformance policies are YAML");
    let kind = quota_object(&mut file).get("backend")?.get("kind")?;
    kind.as_str().map(str::to_owned)
}

fn on_redis(bytes: &[u8]) -> String {
    with_backend(bytes, |backend| {
        backend.insert("kind".into(), "redis".into());
        backend.insert("url".into(), "redis://stand-in.invalid".into());
    })
}

/// The policy text with its `backend` mapping, made if it is not there, changed by `change`.
fn with_backend(bytes: &[u8], change: impl FnOnce(&mut Mapping)) -> String {
    let mut file: Value = serde_yaml::from_slice(bytes).expect("conformance policies are YAML");
    let quota = quota_object(&mut file);
    let backend = quota
        .entry("backend".into())
        .or_insert_with(|| Value::Mapping(Mapping::new()));
    change(backend.as_mapping_mut().expect("the backend is a mapping"));
    serde_yaml::to_string(&file).expect("what was read can be written")
}

fn quota_object(file: &mut Value) -> &mut Mapping {
    let top = file.as_mapping_mut().expect("a policy file is a mapping");
    if top.contains_key("resilience") {
        let resilience = top.get_mut("resilience").and_then(Value::as_mapping_mut);
        let quota = resilience.and_then(|resilience| resilience.get_mut("quota"));
        return quota
            .and_then(Value::as_mapping_mut)
            .expect("an Impulse configuration holds the quota object");
    }
    top
}
