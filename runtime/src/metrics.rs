//! The metric families of contract §9, named once.
//!
//! Counting costs one relaxed addition to a cell of the thread's own shard: no lock, no allocation, no label lookup. The
//! cells of a policy are laid out when a program is published; labels are put together when somebody scrapes.
//!
//! Series: every cell that has counted is shown. Besides, so that `rate()` sees the first event, the series a program can
//! produce in its normal mode are shown at 0 from the start (allowed; its denials; failures under the file's failure
//! policy; backend health), unless the file has more than [`PRECREATED_POLICIES`] policies. A policy that a reload keeps
//! keeps its counts, one that it removes loses its series, and one whose `selector_dimensions` changed starts new series.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::RwLock;
use prometheus::core::{Collector, Desc};
use prometheus::proto::{Counter, LabelPair, Metric, MetricFamily, MetricType};
use prometheus::{Registry, TextEncoder};
use quota_compiler::program::{PolicyRow, Program};
use quota_compiler::terms::{Enforcement, FailurePolicy};

use crate::outcome::{BackendFailure, BackendMode, Decision, Outcome, Reason};

/// One more per evaluated policy.
pub const POLICY_OUTCOMES: &str = "impulse_quota_policy_outcomes_total";
/// One more per backend evaluation.
pub const BACKEND_HEALTH: &str = "impulse_quota_backend_health_total";

/// Files with more policies than this show a series only once it has counted: a scrape must stay small.
pub const PRECREATED_POLICIES: usize = 1000;

const POLICY_OUTCOMES_HELP: &str = "Evaluated policies by decision and reason.";
const BACKEND_HEALTH_HELP: &str = "Backend evaluations by how the primary backend answered.";

/// `selector_dimensions` of a request no policy applied to.
const NO_DIMENSIONS: &str = "none";

/// Cells of a shard: what one policy, or one backend kind, can count.
const CELLS: usize = 14;

/// Blocks of one file at most, over all shards: 8 MiB. A file of very many policies is spread over fewer shards.
const BLOCK_BUDGET: usize = 1 << 16;

/// The counters of one policy or kind that threads of one shard add to. A line pair of its own, so that two cores never
/// write to one cache line.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Shard([AtomicU64; CELLS]);

/// The counters of one policy or kind; as many shards as a power of two.
type Block = Arc<[Shard]>;

fn block(shards: usize) -> Block {
    (0..shards).map(|_| Shard::default()).collect()
}

fn total(block: &Block, cell: usize) -> u64 {
    block
        .iter()
        .filter_map(|shard| shard.0.get(cell))
        .map(|count| count.load(Ordering::Relaxed))
        .fold(0, u64::wrapping_add)
}

fn add_one(block: &Block, cell: usize) {
    let shard = block.get(thread_number() & block.len().wrapping_sub(1));
    if let Some(count) = shard.and_then(|shard| shard.0.get(cell)) {
        count.fetch_add(1, Ordering::Relaxed);
    }
}

/// A small number of the calling thread, which spreads threads over shards.
pub(crate) fn thread_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static NUMBER: usize = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    NUMBER.with(|number| *number)
}

/// Shards for as many threads as this machine runs at once, a power of two of at most 64.
pub(crate) fn shard_count() -> usize {
    std::thread::available_parallelism()
        .map_or(1, usize::from)
        .next_power_of_two()
        .min(64)
}

/// What the cells of a policy's block count, besides its own labels. Equal profiles share a block over reloads.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Profile {
    kind: Box<str>,
    enforcement: Enforcement,
    failure_policy: FailurePolicy,
}

impl Profile {
    fn of(program: &Program) -> Self {
        Self {
            kind: program.backend().kind.clone(),
            enforcement: program.enforcement(),
            failure_policy: program.failure_policy(),
        }
    }

    const fn denial(&self) -> Decision {
        match self.enforcement {
            Enforcement::Enforce => Decision::Denied,
            Enforcement::Shadow => Decision::ShadowDenied,
        }
    }

    const fn failure(&self) -> Decision {
        match (self.enforcement, self.failure_policy) {
            (Enforcement::Enforce, FailurePolicy::FailClosed) => Decision::FailedClosed,
            (Enforcement::Enforce, FailurePolicy::FailOpen) | (Enforcement::Shadow, _) => {
                Decision::FailedOpen
            }
        }
    }

    /// The decision that goes with a reason.
    const fn decision(&self, reason: Reason) -> Decision {
        match reason {
            Reason::Allowed => Decision::Allowed,
            Reason::NotApplied => Decision::NotApplied,
            Reason::BurstQuotaExhausted
            | Reason::SustainedQuotaExhausted
            | Reason::SelectorIdentityMissing
            | Reason::SelectorIdentityInvalid => self.denial(),
            Reason::BackendTimeout | Reason::BackendUnavailable | Reason::BackendError => {
                self.failure()
            }
        }
    }
}

const MODES: [BackendMode; 3] = [
    BackendMode::Primary,
    BackendMode::FallbackAfterTimeout,
    BackendMode::FallbackAfterUnavailable,
];

/// The legal pairs of reason and mode, in the order of the cells of a policy's block. The decision follows from the reason
/// and the profile.
const OUTCOME_CELLS: [(Reason, BackendMode); CELLS] = [
    (Reason::Allowed, MODES[0]),
    (Reason::Allowed, MODES[1]),
    (Reason::Allowed, MODES[2]),
    (Reason::BurstQuotaExhausted, MODES[0]),
    (Reason::BurstQuotaExhausted, MODES[1]),
    (Reason::BurstQuotaExhausted, MODES[2]),
    (Reason::SustainedQuotaExhausted, MODES[0]),
    (Reason::SustainedQuotaExhausted, MODES[1]),
    (Reason::SustainedQuotaExhausted, MODES[2]),
    (Reason::SelectorIdentityMissing, MODES[0]),
    (Reason::SelectorIdentityInvalid, MODES[0]),
    (Reason::BackendTimeout, MODES[0]),
    (Reason::BackendUnavailable, MODES[0]),
    (Reason::BackendError, MODES[0]),
];

const fn mode_offset(mode: BackendMode) -> usize {
    match mode {
        BackendMode::Primary => 0,
        BackendMode::FallbackAfterTimeout => 1,
        BackendMode::FallbackAfterUnavailable => 2,
    }
}

/// The cell of an evaluated policy. Where a mode is not legal for a reason the primary's cell counts.
const fn outcome_cell(reason: Reason, mode: BackendMode) -> Option<usize> {
    Some(match reason {
        Reason::Allowed => mode_offset(mode),
        Reason::BurstQuotaExhausted => 3 + mode_offset(mode),
        Reason::SustainedQuotaExhausted => 6 + mode_offset(mode),
        Reason::SelectorIdentityMissing => 9,
        Reason::SelectorIdentityInvalid => 10,
        Reason::BackendTimeout => 11,
        Reason::BackendUnavailable => 12,
        Reason::BackendError => 13,
        // A request no policy applied to: counted per kind, never per policy.
        Reason::NotApplied => return None,
    })
}

/// The reason `available` of the health family; the others are those of [`BackendFailure`].
pub(crate) const AVAILABLE: &str = "available";

/// What the health family counts, in the order of the first cells of a kind's block.
const HEALTH_CELLS: [(Option<BackendFailure>, BackendMode); 6] = [
    (None, MODES[0]),
    (Some(BackendFailure::Timeout), MODES[0]),
    (Some(BackendFailure::Unavailable), MODES[0]),
    (Some(BackendFailure::Error), MODES[0]),
    (Some(BackendFailure::Timeout), MODES[1]),
    (Some(BackendFailure::Unavailable), MODES[2]),
];

/// The cell of a kind's block that counts requests no policy applied to.
const NOT_APPLIED_CELL: usize = HEALTH_CELLS.len();

const fn health_cell(failure: Option<BackendFailure>, fallback_decided: bool) -> usize {
    match (failure, fallback_decided) {
        (None, _) => 0,
        (Some(BackendFailure::Timeout), false) => 1,
        (Some(BackendFailure::Unavailable), false) => 2,
        (Some(BackendFailure::Error), _) => 3,
        (Some(BackendFailure::Timeout), true) => 4,
        (Some(BackendFailure::Unavailable), true) => 5,
    }
}

/// The cells one published program counts in.
#[derive(Debug)]
pub(crate) struct ProgramCells {
    /// By policy.
    policies: Box<[Block]>,
    kind: Block,
}

impl ProgramCells {
    /// Counts the outcomes of one request that was decided while quota is enabled.
    pub(crate) fn count(&self, outcome: &Outcome) {
        if outcome.policies.is_empty() {
            add_one(&self.kind, NOT_APPLIED_CELL);
        }
        for policy in &outcome.policies {
            let block = self.policies.get(policy.policy.0 as usize);
            if let (Some(block), Some(cell)) = (block, outcome_cell(policy.reason, policy.mode)) {
                add_one(block, cell);
            }
        }
    }

    /// Counts one backend evaluation: how the primary answered, and whether a fallback then decided.
    pub(crate) fn count_health(&self, failure: Option<BackendFailure>, fallback_decided: bool) {
        add_one(&self.kind, health_cell(failure, fallback_decided));
    }
}

/// The series of one policy.
#[derive(Debug)]
struct PolicySeries {
    dimensions: Box<str>,
    /// A policy counts in another block while the kind, the enforcement or the failure policy is another: those are labels.
    blocks: HashMap<Profile, Block>,
    /// Cells shown at 0 under the published profile, one bit each.
    precreated: u16,
}

#[derive(Debug, Default)]
struct Families {
    policies: BTreeMap<Box<str>, PolicySeries>,
    kinds: BTreeMap<Box<str>, Block>,
    published: Option<Profile>,
    /// Health cells shown at 0 under the published kind; whether quota is enabled decides on the not-applied cell.
    precreated_health: u16,
    enabled: bool,
}

/// The registry with our two families, and what it takes to publish a program in them.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    families: Arc<RwLock<Families>>,
}

impl Metrics {
    /// A registry of its own that holds our families.
    pub(crate) fn new() -> Result<Self, prometheus::Error> {
        let families = Arc::<RwLock<Families>>::default();
        let registry = Registry::new();
        registry.register(Box::new(FamilyCollector::new(Arc::clone(&families))?))?;
        Ok(Self { registry, families })
    }

    pub(crate) const fn registry(&self) -> &Registry {
        &self.registry
    }

    /// The cells of `program`, which is about to be published; series of policies it no longer has are dropped.
    pub(crate) fn publish(&self, program: &Program) -> ProgramCells {
        let profile = Profile::of(program);
        let rows = program.policies();
        let shards = policy_shards(rows.len());
        let mut families = self.families.write();
        let mut former = std::mem::take(&mut families.policies);
        let mut cells = Vec::with_capacity(rows.len());
        for row in rows {
            let mut series = former
                .remove(&row.name)
                .filter(|series| series.dimensions == row.selector_dimensions)
                .unwrap_or_else(|| PolicySeries {
                    dimensions: row.selector_dimensions.clone(),
                    blocks: HashMap::new(),
                    precreated: 0,
                });
            let cell = series
                .blocks
                .entry(profile.clone())
                .or_insert_with(|| block(shards));
            cells.push(Arc::clone(cell));
            series.precreated = if program.enabled() && rows.len() <= PRECREATED_POLICIES {
                reachable_cells(program, row)
            } else {
                0
            };
            families.policies.insert(row.name.clone(), series);
        }
        let kind = families.kinds.entry(profile.kind.clone());
        let kind = Arc::clone(kind.or_insert_with(|| block(shard_count())));
        families.precreated_health = if program.enabled() {
            reachable_health(program)
        } else {
            0
        };
        families.enabled = program.enabled();
        families.published = Some(profile);
        ProgramCells {
            policies: cells.into(),
            kind,
        }
    }

    /// Every family of the registry in the Prometheus text format. HELP and TYPE of ours stand there even without a sample.
    pub(crate) fn render(&self) -> String {
        let gathered = self.registry.gather();
        let mut text = String::new();
        if let Err(error) = TextEncoder::new().encode_utf8(&gathered, &mut text) {
            tracing::error!(%error, "a metric family could not be written");
        }
        // The encoder takes no family without a sample.
        for (name, help) in [
            (BACKEND_HEALTH, BACKEND_HEALTH_HELP),
            (POLICY_OUTCOMES, POLICY_OUTCOMES_HELP),
        ] {
            if !gathered.iter().any(|family| family.name() == name) {
                text.push_str(&format!("# HELP {name} {help}\n# TYPE {name} counter\n"));
            }
        }
        text
    }
}

/// Shards of each policy's block: as many as threads run at once, fewer where the file has very many policies.
fn policy_shards(policies: usize) -> usize {
    let affordable = BLOCK_BUDGET / policies.max(1);
    let affordable = if affordable == 0 {
        1
    } else {
        1 << affordable.ilog2()
    };
    shard_count().min(affordable)
}

/// The cells a policy can reach in the normal mode of its file.
fn reachable_cells(program: &Program, row: &PolicyRow) -> u16 {
    let has_source =
        row.view.tenant.is_some() || row.view.token.is_some() || row.view.client.is_some();
    let remote = program.backend().is_remote();
    let reachable = |(reason, mode): (Reason, BackendMode)| {
        mode == BackendMode::Primary
            && match reason {
                Reason::Allowed | Reason::BackendUnavailable => true,
                Reason::BurstQuotaExhausted => row.burst.is_some(),
                Reason::SustainedQuotaExhausted => row.sustained.is_some(),
                Reason::SelectorIdentityMissing => has_source || row.view.route,
                Reason::SelectorIdentityInvalid => has_source,
                Reason::BackendTimeout | Reason::BackendError => remote,
                Reason::NotApplied => false,
            }
    };
    bits(OUTCOME_CELLS.into_iter().map(reachable))
}

/// The health cells the backend of a file can reach.
fn reachable_health(program: &Program) -> u16 {
    let remote = program.backend().is_remote();
    let fallback = program.fallback().is_some();
    bits(
        HEALTH_CELLS
            .into_iter()
            .map(|(failure, mode)| match (failure, mode) {
                (None | Some(BackendFailure::Unavailable), BackendMode::Primary) => true,
                (Some(BackendFailure::Timeout | BackendFailure::Error), BackendMode::Primary) => {
                    remote
                }
                (_, BackendMode::FallbackAfterTimeout | BackendMode::FallbackAfterUnavailable) => {
                    fallback
                }
            }),
    )
}

fn bits(set: impl Iterator<Item = bool>) -> u16 {
    set.enumerate()
        .fold(0, |bits, (index, set)| bits | u16::from(set) << index)
}

/// Puts the families together when somebody scrapes.
struct FamilyCollector {
    families: Arc<RwLock<Families>>,
    descs: [Desc; 2],
}

impl FamilyCollector {
    fn new(families: Arc<RwLock<Families>>) -> Result<Self, prometheus::Error> {
        let desc = |name: &str, help: &str, labels: &[&str]| {
            Desc::new(
                name.to_owned(),
                help.to_owned(),
                labels.iter().map(|&label| label.to_owned()).collect(),
                HashMap::new(),
            )
        };
        Ok(Self {
            families,
            descs: [
                desc(POLICY_OUTCOMES, POLICY_OUTCOMES_HELP, &OUTCOME_LABELS)?,
                desc(BACKEND_HEALTH, BACKEND_HEALTH_HELP, &HEALTH_LABELS)?,
            ],
        })
    }
}

/// In the order of the text: by name, as the crate's own metrics are.
const OUTCOME_LABELS: [&str; 5] = [
    "backend_mode",
    "decision",
    "policy",
    "reason",
    "selector_dimensions",
];
const HEALTH_LABELS: [&str; 2] = ["backend_mode", "reason"];

impl Collector for FamilyCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.descs.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let families = self.families.read();
        vec![
            family(POLICY_OUTCOMES, POLICY_OUTCOMES_HELP, families.outcomes()),
            family(BACKEND_HEALTH, BACKEND_HEALTH_HELP, families.health()),
        ]
    }
}

impl Families {
    fn outcomes(&self) -> Vec<Metric> {
        let mut samples = Vec::new();
        for (name, series) in &self.policies {
            // What is allowed has the same labels under every enforcement: counts of several blocks may be one series.
            let mut counts = BTreeMap::<_, u64>::new();
            for (profile, block) in &series.blocks {
                let precreated = if self.published.as_ref() == Some(profile) {
                    series.precreated
                } else {
                    0
                };
                for (cell, (reason, mode)) in OUTCOME_CELLS.into_iter().enumerate() {
                    let count = total(block, cell);
                    if count > 0 || precreated & (1 << cell) != 0 {
                        let labels = (&*profile.kind, mode, profile.decision(reason), reason);
                        let sum = counts.entry(labels).or_default();
                        *sum = sum.wrapping_add(count);
                    }
                }
            }
            for ((kind, mode, decision, reason), count) in counts {
                let mode = mode.label(kind);
                let dimensions = &series.dimensions;
                samples.push(outcome_sample(
                    name, decision, reason, dimensions, mode, count,
                ));
            }
        }
        for (kind, block) in &self.kinds {
            let count = total(block, NOT_APPLIED_CELL);
            if count > 0 || (self.enabled && self.is_published(kind)) {
                samples.push(outcome_sample(
                    "",
                    Decision::NotApplied,
                    Reason::NotApplied,
                    NO_DIMENSIONS,
                    BackendMode::Primary.label(kind),
                    count,
                ));
            }
        }
        samples
    }

    fn health(&self) -> Vec<Metric> {
        let mut samples = Vec::new();
        for (kind, block) in &self.kinds {
            let precreated = if self.is_published(kind) {
                self.precreated_health
            } else {
                0
            };
            for (cell, (failure, mode)) in HEALTH_CELLS.into_iter().enumerate() {
                let count = total(block, cell);
                if count > 0 || precreated & (1 << cell) != 0 {
                    let reason = failure.map_or(AVAILABLE, BackendFailure::as_str);
                    let labels = [mode.label(kind), reason.to_owned()];
                    samples.push(sample(&HEALTH_LABELS, labels, count));
                }
            }
        }
        samples
    }

    fn is_published(&self, kind: &str) -> bool {
        self.published
            .as_ref()
            .is_some_and(|profile| &*profile.kind == kind)
    }
}

fn outcome_sample(
    policy: &str,
    decision: Decision,
    reason: Reason,
    dimensions: &str,
    mode: String,
    count: u64,
) -> Metric {
    let labels = [
        mode,
        decision.as_str().to_owned(),
        policy.to_owned(),
        reason.as_str().to_owned(),
        dimensions.to_owned(),
    ];
    sample(&OUTCOME_LABELS, labels, count)
}

fn sample<const N: usize>(names: &[&str; N], values: [String; N], count: u64) -> Metric {
    let labels = names.iter().zip(values).map(|(name, value)| {
        let mut label = LabelPair::default();
        label.set_name((*name).to_owned());
        label.set_value(value);
        label
    });
    let mut metric = Metric::from_label(labels.collect());
    let mut counter = Counter::default();
    #[expect(
        clippy::cast_precision_loss,
        reason = "the text format carries doubles; exact up to 2^53"
    )]
    counter.set_value(count as f64);
    metric.set_counter(counter);
    metric
}

fn family(name: &str, help: &str, samples: Vec<Metric>) -> MetricFamily {
    let mut family = MetricFamily::default();
    family.set_name(name.to_owned());
    family.set_help(help.to_owned());
    family.set_field_type(MetricType::COUNTER);
    family.set_metric(samples);
    family
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_outcome_cell_is_found_by_its_reason_and_mode() {
        for (cell, (reason, mode)) in OUTCOME_CELLS.into_iter().enumerate() {
            assert_eq!(outcome_cell(reason, mode), Some(cell));
        }
        assert_eq!(outcome_cell(Reason::NotApplied, BackendMode::Primary), None);
    }

    #[test]
    fn every_health_cell_is_found_by_its_failure_and_mode() {
        for (cell, (failure, mode)) in HEALTH_CELLS.into_iter().enumerate() {
            assert_eq!(health_cell(failure, mode != BackendMode::Primary), cell);
        }
    }

    #[test]
    fn threads_add_to_one_total() {
        let block = block(4);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| (0..1000).for_each(|_| add_one(&block, 3)));
            }
        });
        assert_eq!(total(&block, 3), 8000);
        assert_eq!(total(&block, 2), 0);
    }

    #[test]
    fn very_many_policies_share_shards() {
        assert_eq!(policy_shards(0), shard_count());
        assert_eq!(policy_shards(1 << 20), 1);
        assert!(policy_shards(3000) * 3000 <= BLOCK_BUDGET);
    }
}
