//! A remote backend that says what a test scripted, linked in through the plugin table as any other.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use quota_plugin_abi::{QUOTA_CAP_NATIVE_BATCH, quota_plugin, quota_str};
use quota_plugin_sdk::{
    Backend, Capabilities, Context, Decision, Diagnostics, Exported, Failure, Health, HealthState,
    Item,
};

/// Far longer than anything that is waited for takes.
const SURELY: Duration = Duration::from_secs(20);

/// What the backend does with one check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Say {
    /// Charges it: the first of its window.
    Allow,
    /// The burst window is exhausted.
    Deny,
    /// The same, as a denial known before.
    DenyLocally,
    /// Times out by its own word.
    Timeout,
    /// Is not available.
    Unavailable,
    /// Fails otherwise.
    Fail,
    /// Nothing until the script is released, then allows.
    Silence,
}

#[derive(Debug)]
struct State {
    next: VecDeque<Say>,
    always: Say,
    decided: usize,
    silent: usize,
    released: bool,
    created: usize,
    instances: usize,
    available: HealthState,
    last_failure: Option<Failure>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// By key prefix.
static SCRIPTS: Mutex<BTreeMap<String, Arc<Shared>>> = Mutex::new(BTreeMap::new());

/// What the instances with one key prefix are told to say, and what happened to them.
#[derive(Debug)]
pub(crate) struct Script {
    prefix: &'static str,
    shared: Arc<Shared>,
}

impl Script {
    /// The script of instances with this key prefix, which no other test uses. They allow where nothing else is said.
    pub(crate) fn new(prefix: &'static str) -> Self {
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                next: VecDeque::new(),
                always: Say::Allow,
                decided: 0,
                silent: 0,
                released: false,
                created: 0,
                instances: 0,
                available: HealthState::Unknown,
                last_failure: None,
            }),
            changed: Condvar::new(),
        });
        let former = SCRIPTS
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(prefix.to_owned(), Arc::clone(&shared));
        assert!(former.is_none(), "two tests use the prefix {prefix}");
        Self { prefix, shared }
    }

    /// The key prefix.
    pub(crate) fn prefix(&self) -> &'static str {
        self.prefix
    }

    /// What to say of the next checks.
    pub(crate) fn say(&self, next: impl IntoIterator<Item = Say>) {
        self.shared.lock().next.extend(next);
    }

    /// What to say where nothing else is said.
    pub(crate) fn always(&self, say: Say) {
        self.shared.lock().always = say;
    }

    /// Lets every silent check go on, those to come included.
    pub(crate) fn release(&self) {
        self.shared.lock().released = true;
        self.shared.changed.notify_all();
    }

    /// Says of its health that it is not available, or that nothing is known of it.
    pub(crate) fn set_unavailable(&self, unavailable: bool) {
        self.shared.lock().available = if unavailable {
            HealthState::Unavailable
        } else {
            HealthState::Unknown
        };
    }

    /// Checks that reached an instance.
    pub(crate) fn decided(&self) -> usize {
        self.shared.lock().decided
    }

    /// Checks that are silent now.
    pub(crate) fn silent(&self) -> usize {
        self.shared.lock().silent
    }

    /// Instances that were ever made.
    pub(crate) fn created(&self) -> usize {
        self.shared.lock().created
    }

    /// Living instances.
    pub(crate) fn instances(&self) -> usize {
        self.shared.lock().instances
    }

    /// Waits until `condition` holds.
    #[track_caller]
    pub(crate) fn until(&self, condition: impl Fn() -> bool) {
        let since = Instant::now();
        while !condition() {
            assert!(since.elapsed() < SURELY, "it never came true");
            let state = self.shared.lock();
            drop(
                self.shared
                    .changed
                    .wait_timeout(state, Duration::from_millis(5)),
            );
        }
    }
}

/// One instance.
struct Scripted(Arc<Shared>);

impl Backend for Scripted {
    const KIND: &'static str = "scripted";
    const NAME: &'static str = "scripted";
    const VERSION: &'static str = "1";
    const VENDOR: &'static str = "tests";
    const CAPABILITIES: Capabilities = Capabilities::BLOCKING.remote();
    const OPTIONS_SCHEMA: &'static str = r#"{"type": "object", "properties": {"url": {"type": "string"}}, "additionalProperties": false}"#;

    type Options = BTreeMap<String, String>;

    fn create(context: Context<'_, Self::Options>) -> Result<Self, Diagnostics> {
        let scripts = SCRIPTS.lock().unwrap_or_else(PoisonError::into_inner);
        let shared = Arc::clone(&scripts[context.key_prefix]);
        let mut state = shared.lock();
        state.created += 1;
        state.instances += 1;
        drop(state);
        Ok(Self(shared))
    }

    fn check(&self, _item: &Item<'_>, _now_unix_ms: u64) -> Decision {
        let mut state = self.0.lock();
        state.decided += 1;
        let say = state.next.pop_front().unwrap_or(state.always);
        let (allowed, used) = (Decision::Allowed { used: [1, 0] }, [10, 0]);
        let mut fail = |failure| {
            state.last_failure = Some(failure);
            Decision::Failed(failure)
        };
        match say {
            Say::Allow => allowed,
            Say::Deny | Say::DenyLocally => Decision::Denied {
                exhausted: 1,
                used,
                local: say == Say::DenyLocally,
            },
            Say::Timeout => fail(Failure::Timeout),
            Say::Unavailable => fail(Failure::Unavailable),
            Say::Fail => fail(Failure::Error),
            Say::Silence => {
                state.silent += 1;
                self.0.changed.notify_all();
                while !state.released {
                    state = self
                        .0
                        .changed
                        .wait(state)
                        .unwrap_or_else(PoisonError::into_inner);
                }
                state.silent -= 1;
                self.0.changed.notify_all();
                allowed
            }
        }
    }

    fn health(&self) -> Health {
        let state = self.0.lock();
        Health {
            state: state.available,
            reason: state.last_failure,
            error: state
                .last_failure
                .map_or(String::new(), |failure| format!("told to say {failure:?}")),
            ..Health::default()
        }
    }
}

impl Drop for Scripted {
    fn drop(&mut self) {
        self.0.lock().instances -= 1;
        self.0.changed.notify_all();
    }
}

/// The backend, of kind `scripted`: the checks of one request travel together.
pub(crate) static TOGETHER: quota_plugin = quota_plugin {
    capabilities: Exported::<Scripted>::TABLE.capabilities | QUOTA_CAP_NATIVE_BATCH,
    ..Exported::<Scripted>::TABLE
};

/// The same, of kind `scripted_single`: each check travels alone.
pub(crate) static SINGLE: quota_plugin = quota_plugin {
    kind: quota_str::new("scripted_single"),
    ..Exported::<Scripted>::TABLE
};
