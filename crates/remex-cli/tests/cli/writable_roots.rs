//! `remex run --sandbox … --write`: what a directory to be written is, and what stays protected in it.

use std::{fs, os::unix::fs::symlink, path::Path};

use tempfile::TempDir;

use crate::home::{Home, Said};

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Runs a script that may write some places.
fn run(home: &Home, profile: &str, written: &[&Path], script: &str) -> Said {
    let written = written.iter().flat_map(|path| ["--write", text(path)]);
    let args = ["run", "--sandbox", profile].into_iter().chain(written).chain(["--", "sh", "-c", script]);
    home.say(&args.collect::<Vec<_>>())
}

#[test]
fn protected_names_apply_in_every_writable_directory() {
    let home = Home::new();
    // Not a directory for temporary files.
    let place = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (bare, repository) = (place.path().join("bare"), place.path().join("repository"));
    fs::create_dir(&bare).unwrap();
    fs::create_dir_all(repository.join(".git/hooks")).unwrap();
    let script = format!(
        "cd {}; mkdir .git && echo made; mkdir .codex && echo made; mv ../repository/.git . && echo moved; \
         echo x > ../repository/.git/hooks/x && echo hooked; echo x > file; cat file; cd /",
        text(&bare)
    );
    for profile in ["workspace-write", "read-only"] {
        let said = run(&home, profile, &[&bare, &repository], &script);
        assert_eq!((said.code, &*said.out), (Some(0), "x\n"), "{profile}: {said:?}");
        fs::remove_file(bare.join("file")).unwrap();
    }
    let git = repository.join(".git");
    let said = run(&home, "read-only", &[&git], &format!("echo x > {}/hooks/x && echo hooked", text(&git)));
    assert_eq!((said.code, &*said.out), (Some(0), "hooked\n"), "{said:?}");
}

#[test]
fn a_missing_writable_directory_is_refused_by_name() {
    let home = Home::new();
    let place = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let real = fs::canonicalize(place.path()).unwrap();
    fs::create_dir(real.join("data")).unwrap();
    symlink("data", real.join("link")).unwrap();
    let target = format!("`{}`", text(&real.join("data/new")));
    for (written, why) in [("data/new", "does not exist"), ("link/new", "symbolic link")] {
        let said = run(&home, "workspace-write", &[&real.join(written)], "echo ran");
        assert_ne!(said.code, Some(0), "{written}: {said:?}");
        assert_eq!(said.out, "", "{written}");
        assert!(said.err.contains(why) && said.err.contains(&target), "{written}: {said:?}");
    }
}
