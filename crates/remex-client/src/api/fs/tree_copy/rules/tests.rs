use std::os::unix::ffi::OsStrExt;

use super::*;

/// Returns whether a path is excluded, as a walk finds out: from the root down, with the `.gitignore` files on its way.
fn is_excluded(patterns: &[&str], files: &[(&str, &str)], path: &[u8]) -> bool {
    let rules = TreeRules::new(patterns).unwrap().with_gitignore_files();
    let mut rules = DirectoryRules::root(rules);
    let (path, is_directory) = match path.strip_suffix(b"/") {
        Some(path) => (path, true),
        None => (path, false),
    };
    let names: Vec<&OsStr> = path.split(|byte| *byte == b'/').map(OsStrExt::from_bytes).collect();
    for (level, name) in names.iter().enumerate() {
        let file = files.iter().find(|(directory, _)| Path::new(directory) == rules.directory);
        if let Some((_, content)) = file {
            rules.add_gitignore(content.as_bytes());
        }
        let is_last = level + 1 == names.len();
        if rules.exclude(name, is_directory || !is_last) {
            return true;
        }
        rules = rules.enter(name);
    }
    false
}

#[test]
fn patterns_match_like_those_of_git() {
    // The pattern, what it excludes, and what it does not.
    let table: &[(&str, &[&str], &[&str])] = &[
        ("target", &["target", "target/", "a/target", "target/x", "a/target/b"], &["targets", "my-target"]),
        ("target/", &["target/", "a/target/", "target/x"], &["target", "a/target"]),
        ("/target", &["target", "target/x"], &["a/target"]),
        ("a/b", &["a/b", "a/b/c"], &["x/a/b", "b"]),
        ("*.log", &["x.log", "a/x.log", ".log", "x.log/y"], &["x.logs", "log"]),
        ("/*.log", &["x.log"], &["a/x.log"]),
        ("a/*", &["a/b", "a/b/c"], &["a/", "b"]),
        ("a/*/c", &["a/b/c"], &["a/c", "a/b/b/c"]),
        ("**/c", &["c", "a/c", "a/b/c"], &["cc"]),
        ("a/**", &["a/b", "a/b/c"], &["a/", "b"]),
        ("a/**/c", &["a/c", "a/b/c", "a/b/b/c"], &["b/a/c"]),
        ("?.o", &["a.o"], &["ab.o", ".o"]),
        ("[ab].o", &["a.o", "b.o"], &["c.o"]),
        ("[!ab].o", &["c.o"], &["a.o"]),
        ("\\#x", &["#x"], &["x"]),
        ("\\!x", &["!x"], &["x"]),
        ("# a comment", &[], &["# a comment", "a"]),
        ("", &[], &["a"]),
        ("x   ", &["x"], &["x   "]),
        ("x\\ ", &["x "], &["x"]),
    ];
    for (pattern, excluded, included) in table {
        for path in *excluded {
            assert!(is_excluded(&[pattern], &[], path.as_bytes()), "`{pattern}` excludes `{path}`");
            assert!(is_excluded(&[], &[("", pattern)], path.as_bytes()), "a file `{pattern}`: `{path}`");
        }
        for path in *included {
            assert!(!is_excluded(&[pattern], &[], path.as_bytes()), "`{pattern}` includes `{path}`");
            assert!(!is_excluded(&[], &[("", pattern)], path.as_bytes()), "a file `{pattern}`: `{path}`");
        }
    }
}

#[test]
fn later_rules_and_nearer_files_take_precedence() {
    let files = &[("", "*.log\n/build/\n!keep.log\n"), ("a", "!*.log\n/x\n"), ("a/b", "deep.log\r\n")];
    let check = |patterns: &[&str], path: &str| is_excluded(patterns, files, path.as_bytes());
    for path in ["x.log", "c/x.log", "build/", "build/keep.log", "a/x", "a/b/deep.log"] {
        assert!(check(&[], path), "{path}");
    }
    for path in ["keep.log", "c/keep.log", "a/x.log", "a/b/x.log", "a/b/x", "x", "a/build/", "build"] {
        assert!(!check(&[], path), "{path}");
    }
    // Rules of the caller come first, in both directions.
    assert!(check(&["keep.log"], "keep.log") && check(&["*.log"], "a/x.log"));
    assert!(!check(&["!x.log"], "x.log") && check(&["!x.log"], "y.log"));
    // Nothing below an excluded directory is included again.
    assert!(check(&["!/build/x"], "build/x"));
}

#[test]
fn names_and_lines_that_are_not_utf_8_are_handled() {
    assert!(is_excluded(&["*.log"], &[], b"caf\xe9.log"));
    // As to git, a question mark is one byte.
    assert!(is_excluded(&["caf?.o"], &[], b"caf\xe9.o") && is_excluded(&["caf??.o"], &[], b"caf\xc3\xa9.o"));
    assert!(!is_excluded(&["*.log"], &[], b"caf\xe9.txt"));
    let mut rules = DirectoryRules::root(TreeRules::default().with_gitignore_files());
    rules.add_gitignore(b"\xef\xbb\xbffirst\n\xff\xfe\n[z-a]\nlast");
    let excluded = |name: &str| rules.exclude(OsStr::new(name), false);
    assert!(excluded("first") && excluded("last") && !excluded("other"));
}

#[test]
fn an_invalid_pattern_is_named() {
    let error = TreeRules::new(["fine", "[z-a]"]).unwrap_err();
    assert!(matches!(&error, Error::Usage { message, .. } if message.contains("`[z-a]`")), "{error}");
}

proptest::proptest! {
    /// Two rules for the same literal name: the last one decides, wherever the name is.
    #[test]
    fn the_last_rule_for_a_name_decides(path in "[a-c]{1,3}(/[a-c]{1,3}){0,3}", verdicts in proptest::collection::vec(proptest::bool::ANY, 1..6)) {
        let name = path.rsplit('/').next().unwrap();
        let lines: Vec<String> =
            verdicts.iter().map(|is_out| if *is_out { format!("/{path}") } else { format!("!/{path}") }).collect();
        let last = *verdicts.last().unwrap();
        let patterns: Vec<&str> = lines.iter().map(String::as_str).collect();
        proptest::prop_assert_eq!(is_excluded(&patterns, &[], path.as_bytes()), last);
        proptest::prop_assert_eq!(is_excluded(&[], &[("", &lines.join("\n"))], path.as_bytes()), last);
        // An unanchored rule excludes it at any depth.
        let below = format!("x/{path}");
        proptest::prop_assert!(is_excluded(&[name], &[], below.as_bytes()));
    }
}
