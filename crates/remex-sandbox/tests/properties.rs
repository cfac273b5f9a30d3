//! What holds for every profile on every file system.

#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

use std::path::{Path, PathBuf};

use proptest::{prelude::*, sample::Index};
use remex_proto::sandbox::{Access as Wire, Entry, EntryPath, MissingPathBehavior, Special};
use remex_sandbox::{
    Access, Action, Host, HostList, Hosts, Node, Policy, PolicyError, Request, resolve,
    testing::{Tree, context},
};

/// The files of every tree, to be varied by links and gaps; small, so that entries, links and rules meet.
const FILES: [&str; 12] = [
    "/w/f",
    "/w/.env",
    "/w/a/f",
    "/w/a/b/f",
    "/w/a/b/.env",
    "/w/d/f",
    "/s/f",
    "/s/a/f",
    "/s/a/.env",
    "/x/f",
    "/x/a/b",
    "/tmp/f",
];

/// Everything that an entry, a link or a question may be about.
const PATHS: [&str; 24] = [
    "/",
    "/w",
    "/w/f",
    "/w/.env",
    "/w/a",
    "/w/a/f",
    "/w/a/b",
    "/w/a/b/f",
    "/w/a/b/.env",
    "/w/d",
    "/w/d/f",
    "/w/new",
    "/w/a/new/deep",
    "/s",
    "/s/f",
    "/s/a",
    "/s/a/f",
    "/s/new",
    "/x",
    "/x/f",
    "/x/a/b",
    "/x/a/b/c",
    "/tmp",
    "/tmp/f",
];

const PATTERNS: [&str; 5] = ["**/.env", "/**/f", "/s/*", "a/**", "[ad]/f"];

fn path() -> impl Strategy<Value = &'static str> {
    prop::sample::select(&PATHS[..])
}

fn access() -> impl Strategy<Value = Wire> {
    prop::sample::select(vec![Wire::Read, Wire::Write, Wire::Deny])
}

fn plain_entry() -> impl Strategy<Value = Entry> {
    (path(), access(), any::<bool>()).prop_map(|(path, access, skips)| Entry {
        path: EntryPath::Path { path: PathBuf::from(path).into() },
        access,
        missing_path_behavior: skips.then_some(MissingPathBehavior::Skip),
    })
}

fn special_entry() -> impl Strategy<Value = Entry> {
    let special = prop_oneof![
        Just(Special::Root),
        Just(Special::ProjectRoots { subpath: None }),
        prop::sample::select(vec!["a", "a/b", ".env", "new"])
            .prop_map(|subpath| Special::ProjectRoots { subpath: Some(subpath.to_owned()) }),
        Just(Special::SlashTmp),
        Just(Special::Tmpdir),
    ];
    (special, plain_entry()).prop_map(|(value, entry)| Entry { path: EntryPath::Special { value }, ..entry })
}

fn pattern_entry() -> impl Strategy<Value = Entry> {
    prop::sample::select(&PATTERNS[..]).prop_map(|pattern| Entry {
        path: EntryPath::GlobPattern { pattern: pattern.to_owned() },
        access: Wire::Deny,
        missing_path_behavior: None,
    })
}

fn entries() -> impl Strategy<Value = Vec<Entry>> {
    let entry = prop_oneof![6 => plain_entry(), 3 => special_entry(), 1 => pattern_entry()];
    prop::collection::vec(entry, 0..7)
}

/// Entries that programs could try to move: `/w` is writable, and most of the others are in it.
fn entries_in_a_writable_directory() -> impl Strategy<Value = Vec<Entry>> {
    let inside =
        prop::sample::select(PATHS.iter().filter(|path| path.starts_with("/w/")).collect::<Vec<_>>());
    let inside = (inside, plain_entry()).prop_map(|(path, entry)| Entry {
        path: EntryPath::Path { path: PathBuf::from(path).into() },
        ..entry
    });
    let entry = prop_oneof![3 => inside, 2 => special_entry(), 1 => plain_entry(), 1 => pattern_entry()];
    let writable = Entry {
        path: EntryPath::Path { path: PathBuf::from("/w").into() },
        access: Wire::Write,
        missing_path_behavior: None,
    };
    prop::collection::vec(entry, 1..5).prop_map(move |mut entries| {
        entries.push(writable.clone());
        entries
    })
}

/// Lists of the client and of the server, which a policy may have or not.
fn hosts() -> impl Strategy<Value = Option<Hosts>> {
    const HOSTS: [&str; 7] = [
        "*",
        "example.org",
        "*.example.org:443",
        "**.Example.net.",
        "10.0.0.1:80",
        "[2001:DB8::1]",
        "localhost",
    ];
    let entries = || prop::sample::subsequence(&HOSTS[..], 0..4);
    let list = (entries(), entries()).prop_map(|(allow, deny)| HostList::parse(allow, deny).unwrap().into());
    prop::collection::vec(list, 0..3)
        .prop_map(|lists: Vec<Hosts>| lists.into_iter().reduce(|hosts, floor| hosts.narrow(&floor)))
}

/// A file system with some of the files, and links anywhere.
fn tree() -> impl Strategy<Value = Tree> {
    let files = prop::sample::subsequence(&FILES[..], 4..FILES.len());
    let links = prop::collection::vec((path(), path()), 0..3);
    (files, links).prop_map(|(files, links)| {
        let mut tree = Tree::new(files);
        for (path, target) in links.into_iter().filter(|(path, _)| *path != "/") {
            replace(&mut tree, Path::new(path), Node::Link(target.into()));
        }
        tree
    })
}

/// Puts a node in the place of what is there, if there is a directory for it.
fn replace(tree: &mut Tree, path: &Path, node: Node) {
    let parents = path.ancestors().skip(1);
    let has_parents = parents.into_iter().all(|parent| tree.node(parent).unwrap() == Node::Directory);
    if has_parents {
        tree.remove(path);
        tree.insert(path, node);
    }
}

fn resolved(entries: Vec<Entry>, tree: &Tree) -> Result<Policy, PolicyError> {
    let context = context(entries, Some(vec![PathBuf::from("/w").into()]));
    resolve(&Request { context: &context, cwd: None, tmpdir: Some("/x".as_ref()) }, tree)
}

/// Returns the paths without links on the way, and some that do not exist.
fn canonical(tree: &Tree) -> Vec<PathBuf> {
    let is_link = |path: &Path| matches!(tree.node(path), Ok(Node::Link(_)));
    let known = PATHS.iter().chain(&FILES).map(PathBuf::from);
    known.flat_map(|path| [path.join("more"), path]).filter(|path| !path.ancestors().any(is_link)).collect()
}

/// Returns what a program may remove and create again as something else.
fn replaceable(policy: &Policy, tree: &Tree) -> Vec<PathBuf> {
    let links = tree.paths().filter(|path| matches!(tree.node(path), Ok(Node::Link(_)))).map(Path::to_owned);
    let is_replaceable = |path: &PathBuf| {
        // Removing a directory removes everything in it.
        let mut below = tree.paths().filter(|below| below.starts_with(path));
        let can_remove = below.all(|below| policy.allows(below, Action::Remove));
        can_remove && policy.allows(path, Action::Create)
    };
    let mut found: Vec<_> = canonical(tree).into_iter().chain(links).filter(is_replaceable).collect();
    found.sort();
    found
}

/// What the entries say, if every path exists and nothing is a link: the longest decides, and among equals `deny`
/// before `write` before `read`.
fn slow_access(entries: &[Entry], path: &Path) -> Access {
    let mut decided = (0, Access::Deny);
    for entry in entries {
        let EntryPath::Path { path: rule } = &entry.path else { panic!("{entry:?}") };
        let rule = rule.native().unwrap();
        let (length, access) = (rule.components().count(), Access::from(entry.access));
        if path.starts_with(rule) && length >= decided.0 {
            let beats = length > decided.0 || access == Access::Deny || decided.1 == Access::Read;
            decided = if beats { (length, access) } else { decided };
        }
    }
    decided.1
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) })]

    #[test]
    fn the_deepest_entry_decides(entries in prop::collection::vec(plain_entry(), 0..8)) {
        let mut tree = Tree::default();
        PATHS.iter().for_each(|path| tree.insert(Path::new(path), Node::Directory));
        let policy = resolved(entries.clone(), &tree).unwrap();
        for path in canonical(&tree) {
            prop_assert_eq!(policy.access(&path), slow_access(&entries, &path), "{:?}", path);
        }
    }

    #[test]
    fn the_order_of_entries_does_not_matter(
        entries in entries(),
        keys in prop::collection::vec(any::<u8>(), 7),
        tree in tree(),
    ) {
        let mut shuffled: Vec<_> = entries.iter().cloned().zip(keys).collect();
        shuffled.sort_by_key(|(_, key)| *key);
        let shuffled = shuffled.into_iter().map(|(entry, _)| entry).collect();
        prop_assert_eq!(resolved(entries, &tree).ok(), resolved(shuffled, &tree).ok());
    }

    #[test]
    fn changes_in_writable_directories_never_widen_a_policy(
        entries in entries_in_a_writable_directory(),
        mut tree in tree(),
        changes in prop::collection::vec((any::<Index>(), path(), 0..6u8), 1..6),
    ) {
        let Ok(policy) = resolved(entries.clone(), &tree) else { return Ok(()) };
        for (index, target, kind) in changes {
            let replaceable = replaceable(&policy, &tree);
            if replaceable.is_empty() {
                continue;
            }
            let changed = index.get(&replaceable);
            match kind {
                0 => tree.remove(changed),
                1 => replace(&mut tree, changed, Node::Directory),
                2 => replace(&mut tree, changed, Node::File),
                _ => replace(&mut tree, changed, Node::Link(target.into())),
            }
            // Refused is not wider.
            let Ok(after) = resolved(entries.clone(), &tree) else { continue };
            for path in canonical(&tree) {
                prop_assert!(
                    after.access(&path) <= policy.access(&path),
                    "{path:?} after a change of {changed:?}: {policy:#?} became {after:#?} in {tree:?}"
                );
            }
        }
    }

    #[test]
    fn narrowing_a_policy_allows_the_lesser_access_everywhere(
        mine in entries(),
        floor in entries(),
        tree in tree(),
    ) {
        let (Ok(mine), Ok(floor)) = (resolved(mine, &tree), resolved(floor, &tree)) else { return Ok(()) };
        let both = mine.narrow(&floor).unwrap();
        for path in canonical(&tree) {
            prop_assert_eq!(both.access(&path), mine.access(&path).min(floor.access(&path)), "{:?}", path);
            for action in [Action::Read, Action::Write, Action::Create, Action::Remove] {
                let allowed_by_both = mine.allows(&path, action) && floor.allows(&path, action);
                prop_assert!(allowed_by_both || !both.allows(&path, action), "{:?} {:?}", path, action);
            }
        }
        for directory in both.temporary_directories() {
            prop_assert_eq!(both.access(directory), Access::Write);
        }
        prop_assert_eq!(&floor.narrow(&mine).unwrap(), &both);
        prop_assert_eq!(&both.narrow(&mine).unwrap(), &both);
        prop_assert_eq!(mine.narrow(&mine).unwrap(), mine);
    }

    #[test]
    fn a_policy_round_trips(entries in entries(), tree in tree(), hosts in hosts()) {
        let Ok(policy) = resolved(entries, &tree) else { return Ok(()) };
        let policy = hosts.into_iter().fold(policy, Policy::with_hosts);
        let sent = postcard::to_stdvec(&policy).unwrap();
        let received: Policy = postcard::from_bytes(&sent).unwrap();
        prop_assert_eq!(&received, &policy);
        for path in canonical(&tree) {
            prop_assert_eq!(received.access(&path), policy.access(&path), "{:?}", path);
            for action in [Action::Read, Action::Write, Action::Create, Action::Remove] {
                prop_assert_eq!(received.allows(&path, action), policy.allows(&path, action), "{:?}", path);
            }
        }
        prop_assert_eq!(received.pinned(), policy.pinned());
        prop_assert_eq!(postcard::to_stdvec(&received).unwrap(), sent);
    }

    #[test]
    fn a_corrupted_policy_is_an_error_or_another_policy(
        entries in entries(),
        tree in tree(),
        hosts in hosts(),
        changes in prop::collection::vec((any::<Index>(), any::<u8>()), 1..4),
        len in prop::option::of(any::<Index>()),
    ) {
        let Ok(policy) = resolved(entries, &tree) else { return Ok(()) };
        let mut sent = postcard::to_stdvec(&hosts.into_iter().fold(policy, Policy::with_hosts)).unwrap();
        for (at, byte) in changes {
            let at = at.index(sent.len());
            sent[at] = byte;
        }
        sent.truncate(len.map_or(sent.len(), |len| len.index(sent.len())));
        let Ok(received) = postcard::from_bytes::<Policy>(&sent) else { return Ok(()) };
        let again: Policy = postcard::from_bytes(&postcard::to_stdvec(&received).unwrap()).unwrap();
        prop_assert_eq!(again, received);
    }

    #[test]
    fn a_policy_has_no_rule_without_effect(entries in entries(), tree in tree()) {
        let Ok(policy) = resolved(entries, &tree) else { return Ok(()) };
        let rules = policy.rules();
        for (at, rule) in rules.iter().enumerate() {
            let above = rules[..at].iter().rev().find(|above| rule.path.starts_with(&above.path));
            prop_assert_ne!(rule.access, above.map_or(Access::Deny, |above| above.access));
            prop_assert!(policy.access(&rule.path) == rule.access || !policy.patterns().is_empty());
        }
        prop_assert!(rules.is_sorted_by(|a, b| a.path < b.path));
        for directory in policy.pinned() {
            prop_assert!(!policy.allows(directory, Action::Remove), "{directory:?} could be renamed");
        }
    }
}
