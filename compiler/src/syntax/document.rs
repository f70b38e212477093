//! Finds the quota object: the top level of a policy file, or `resilience.quota` of an Impulse configuration (contract §2).

use super::decode::{FIELD_NAME_HELP, MERGE_KEY_HELP, MERGE_KEY_MESSAGE, Root, quota_fields};
use super::misfit::describe;
use super::nearest::nearest_by_spelling;
use super::quote::quote;
use super::scalar;
use super::yaml::{Document, Edge, Node, NodeKind, Tree, Via};
use crate::codes;
use crate::diagnostic::Diagnostic;
use crate::span::Span;

/// The key of an Impulse configuration that holds [`QUOTA`].
const RESILIENCE: &str = "resilience";
/// The key the quota object stands at in `resilience`.
const QUOTA: &str = "quota";
/// The path of the quota object in an Impulse configuration.
pub(super) const IMPULSE_PATH: &str = "resilience.quota";

/// What was found of a quota object.
#[derive(Debug)]
pub(super) enum Located {
    /// Here it is.
    Object(Root),
    /// There is none, but something that looks like one was meant.
    NearMiss,
    /// There is none.
    Nothing,
}

/// Finds the quota object of a text and reports everything about the document as a whole.
pub(super) fn locate(tree: &Tree, truncated: bool, diagnostics: &mut Vec<Diagnostic>) -> Located {
    let mut reports: Vec<(Located, Vec<Diagnostic>)> = Vec::new();
    for document in &tree.documents {
        let mut found = Vec::new();
        let located = in_document(tree, document, &mut found);
        reports.push((located, found));
    }
    if let [_, second, ..] = tree.documents.as_slice() {
        let holds =
            |(located, _): &(Located, Vec<Diagnostic>)| !matches!(located, Located::Nothing);
        if let Some(index) = reports.iter().position(holds) {
            diagnostics.push(
                Diagnostic::new(
                    &codes::SEVERAL_DOCUMENTS,
                    "",
                    second.start,
                    "a second YAML document begins here",
                )
                .with_help("a policy file is one document; put the other into a file of its own"),
            );
            // The policies may as well stand in a later one.
            reports.swap(0, index);
        }
    }
    match reports.into_iter().next() {
        Some((located, mut found)) => {
            // What was not read may hold it.
            if !(truncated && matches!(located, Located::Nothing | Located::NearMiss)) {
                diagnostics.append(&mut found);
            }
            located
        }
        None => {
            if !truncated {
                diagnostics.push(no_object(Span::default(), "the file is empty"));
            }
            Located::Nothing
        }
    }
}

fn in_document(tree: &Tree, document: &Document, diagnostics: &mut Vec<Diagnostic>) -> Located {
    let Some(root) = document.root else {
        diagnostics.push(no_object(document.start, "the document is empty"));
        return Located::Nothing;
    };
    let node = tree.node(root.node);
    let NodeKind::Mapping(top) = &node.kind else {
        diagnostics.push(no_object(Span::at(node.span.start), not_a_mapping(node)));
        return Located::Nothing;
    };
    let keys: Vec<Key<'_>> = top.iter().map(|pair| Key::of(tree, *pair)).collect();
    let ours = keys.iter().find(|key| {
        key.name
            .is_some_and(|name| quota_fields().any(|field| field == name))
    });
    let resilience = keys.iter().find(|key| key.name == Some(RESILIENCE));
    let inside: Vec<Key<'_>> = resilience
        .filter(|key| key.value.via != Via::Cycle)
        .map_or(&[][..], |key| pairs(tree.node(key.value.node)))
        .iter()
        .map(|pair| Key::of(tree, *pair))
        .collect();
    if let (Some(resilience), Some(quota)) = (
        resilience,
        inside.iter().find(|key| key.name == Some(QUOTA)),
    ) {
        if let Some(ours) = ours {
            diagnostics.push(
                Diagnostic::new(
                    &codes::TWO_QUOTA_OBJECTS,
                    IMPULSE_PATH,
                    quota.place,
                    "the file holds a second quota object here",
                )
                .with_related(ours.place, "fields of one at the top level begin here")
                .with_help("keep one of them"),
            );
        }
        check_way(&keys, RESILIENCE, "", diagnostics);
        check_way(&inside, QUOTA, "resilience.", diagnostics);
        let way = [&keys[..], &inside[..]].concat();
        let followed = way.iter().filter(|key| key.aliased).count()
            + usize::from(resilience.value.via == Via::Alias);
        return Located::Object(Root {
            edge: quota.value,
            path: IMPULSE_PATH,
            events: document.events,
            aliases: followed,
            depth: 2,
        });
    }
    if ours.is_some() {
        return Located::Object(Root {
            edge: root,
            path: "",
            events: document.events,
            aliases: 0,
            depth: 0,
        });
    }
    let (diagnostic, located) = missing_object(tree, node, &keys, &inside);
    diagnostics.push(diagnostic);
    located
}

/// A pair of a mapping on the way to the quota object.
#[derive(Clone, Copy)]
struct Key<'t> {
    /// The key, if it is a word.
    name: Option<&'t str>,
    place: Span,
    aliased: bool,
    value: Edge,
}

impl<'t> Key<'t> {
    fn of(tree: &'t Tree, (key, value): (Edge, Edge)) -> Self {
        Self {
            name: scalar::scalar(tree.node(key.node)).map(|scalar| scalar.value),
            place: key.span,
            aliased: key.via == Via::Alias,
            value,
        }
    }
}

/// Reports what is wrong with the keys beside `wanted`, which an Impulse configuration has too: merge keys, which hide fields,
/// keys that are no words, and `wanted` given twice.
fn check_way(keys: &[Key<'_>], wanted: &str, path: &str, diagnostics: &mut Vec<Diagnostic>) {
    let mut first: Option<Span> = None;
    for key in keys {
        match key.name {
            None => diagnostics.push(
                Diagnostic::new(
                    &codes::WRONG_TYPE,
                    path.trim_end_matches('.'),
                    key.place,
                    "the name of a field must be a word",
                )
                .with_help(FIELD_NAME_HELP),
            ),
            Some("<<") => diagnostics.push(
                Diagnostic::new(
                    &codes::MERGE_KEY,
                    format!("{path}<<"),
                    key.place,
                    MERGE_KEY_MESSAGE,
                )
                .with_help(MERGE_KEY_HELP),
            ),
            Some(name) if name == wanted => match first {
                Some(first) => diagnostics.push(
                    Diagnostic::new(
                        &codes::DUPLICATE_FIELD,
                        format!("{path}{wanted}"),
                        key.place,
                        format!("the field `{wanted}` is given twice"),
                    )
                    .with_related(first, "first given here")
                    .with_help("keep one of them"),
                ),
                None => first = Some(key.place),
            },
            Some(_) => {}
        }
    }
}

/// Why a mapping holds no quota object, and whether one was meant.
fn missing_object(
    tree: &Tree,
    root: &Node,
    keys: &[Key<'_>],
    inside: &[Key<'_>],
) -> (Diagnostic, Located) {
    let missing = |place, message: &str| no_object(place, message.to_owned());
    let near = keys.iter().find_map(|key| {
        let meant = nearest_by_spelling(key.name?, quota_fields().chain([RESILIENCE]))?;
        (meant != RESILIENCE || key.name != Some(RESILIENCE)).then_some((key, meant))
    });
    let near = near.or_else(|| {
        inside
            .iter()
            .find_map(|key| Some((key, nearest_by_spelling(key.name?, [QUOTA])?)))
    });
    if let Some((key, meant)) = near {
        let written = quote(key.name.unwrap_or_default());
        let message =
            format!("the file holds no quota object, but {written}, which is no field of one");
        let diagnostic =
            no_object(key.place, message).with_help(format!("did you mean `{meant}`?"));
        return (diagnostic, Located::NearMiss);
    }
    // A quota object under a key of its own.
    let wrapped = keys.iter().find(|key| {
        key.name
            .is_some_and(|name| name == QUOTA || name == IMPULSE_PATH)
            && pairs(tree.node(key.value.node)).iter().any(|pair| {
                Key::of(tree, *pair)
                    .name
                    .is_some_and(|name| quota_fields().any(|field| field == name))
            })
    });
    if let Some(key) = wrapped {
        let diagnostic = missing(key.place, "the quota object stands at the wrong place")
            .with_help(
                "move its fields to the top level, or the object to `quota` inside `resilience`",
            );
        return (diagnostic, Located::NearMiss);
    }
    let mut diagnostic = missing(Span::at(root.span.start), "the file holds no quota object");
    if let Some(merge) = keys.iter().chain(inside).find(|key| key.name == Some("<<")) {
        diagnostic = diagnostic.with_related(merge.place, MERGE_KEY_MESSAGE);
    }
    (diagnostic, Located::Nothing)
}

fn no_object(place: Span, message: impl Into<String>) -> Diagnostic {
    Diagnostic::new(&codes::NO_QUOTA_OBJECT, "", place, message)
        .with_help(
            "the fields of the quota object, such as `policies`, stand at the top level or at `resilience.quota`",
        )
}

fn not_a_mapping(node: &Node) -> String {
    if node.is_nothing() {
        return "the document is empty".to_owned();
    }
    format!("the document is {}, not a mapping", describe(node))
}

fn pairs(node: &Node) -> &[(Edge, Edge)] {
    match &node.kind {
        NodeKind::Mapping(pairs) => pairs,
        NodeKind::Sequence(_) | NodeKind::Scalar { .. } => &[],
    }
}
