//! How the credentials and records of a server are hidden from confined processes: with their directory where possible.
//!
//! A file that is replaced by renaming another one, as most programs do it, takes what covered the old file in a running
//! jail away with it. A covered directory stays covered.

use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::{self, Path, PathBuf},
};

/// Directories that hold much else, apart from those directly below the root.
const SHARED: [&str; 12] = [
    "/etc/pki",
    "/etc/pki/tls",
    "/etc/ssl",
    "/etc/ssl/certs",
    "/run/lock",
    "/run/user",
    "/var/cache",
    "/var/lib",
    "/var/log",
    "/var/run",
    "/var/spool",
    "/var/tmp",
];

/// Trees of programs, which are read as a whole.
const PROGRAMS: [&str; 6] = ["/bin", "/lib", "/lib64", "/nix", "/sbin", "/usr"];

/// Returns what to cover so that these files cannot be seen, by a process that needs some directories. May block.
pub(super) fn covers(files: &[PathBuf], needed: &[PathBuf], home: Option<&Path>) -> Vec<PathBuf> {
    let mut covers = Vec::new();
    for file in files {
        // A link may be replaced as well as the file that it leads to.
        let places = [path::absolute(file).ok(), fs::canonicalize(file).ok()];
        let directories = places.iter().flatten().filter_map(|place| fs::canonicalize(place.parent()?).ok());
        let is_free = |directory: &PathBuf| !is_shared(directory, home) && !is_needed(directory, needed);
        covers.extend(directories.filter(is_free));
        covers.push(file.clone());
    }
    covers.sort();
    covers.dedup();
    covers
}

/// Returns what to cover so that files of other servers cannot be seen: with their directory only if nobody but this user
/// may enter it, because what else is in it concerns a process here that knows nothing of those servers. May block.
pub(super) fn covers_of_others(files: &[PathBuf], needed: &[PathBuf], home: Option<&Path>) -> Vec<PathBuf> {
    let is_private = |directory: &PathBuf| {
        fs::metadata(directory).is_ok_and(|found| found.is_dir() && found.mode() & 0o077 == 0)
    };
    let covers = covers(files, needed, home).into_iter();
    covers.filter(|path| files.contains(path) || is_private(path)).collect()
}

fn is_needed(directory: &Path, needed: &[PathBuf]) -> bool {
    needed.iter().any(|path| path.starts_with(directory))
}

/// Returns whether more than credentials is to be expected in a directory.
fn is_shared(directory: &Path, home: Option<&Path>) -> bool {
    directory.components().count() <= 2
        || SHARED.iter().any(|shared| directory == Path::new(shared))
        || PROGRAMS.iter().any(|programs| directory.starts_with(programs))
        || directory.parent() == Some(Path::new("/home"))
        || home.is_some_and(|home| home.starts_with(directory))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_directory_is_covered_unless_it_is_needed_or_shared() {
        let directory = tempfile::tempdir().unwrap();
        let place = fs::canonicalize(directory.path()).unwrap();
        for name in ["secrets", "data", "w"] {
            fs::create_dir(place.join(name)).unwrap();
        }
        let (token, real) = (place.join("secrets/token"), place.join("data/token"));
        fs::write(&real, "").unwrap();
        std::os::unix::fs::symlink(&real, &token).unwrap();
        let files = [token.clone()];
        let covered = covers(&files, &[place.join("w")], None);
        assert_eq!(covered, [place.join("data"), place.join("secrets"), token.clone()]);
        // A directory that is needed keeps what else is in it.
        let covered = covers(&files, &[place.join("secrets/below"), place.join("data")], None);
        assert_eq!(covered, [token]);
    }

    #[test]
    fn a_directory_of_another_server_is_covered_only_if_it_is_private() {
        let directory = tempfile::tempdir().unwrap();
        let place = fs::canonicalize(directory.path()).unwrap();
        for (name, mode) in [("secrets", 0o700), ("project", 0o755)] {
            fs::create_dir(place.join(name)).unwrap();
            fs::write(place.join(name).join("token"), "").unwrap();
            fs::set_permissions(place.join(name), fs::Permissions::from_mode(mode)).unwrap();
        }
        let (private, open) = (place.join("secrets/token"), place.join("project/token"));
        let covered = covers_of_others(&[private.clone(), open.clone()], &[], None);
        assert_eq!(covered, [open, place.join("secrets"), private]);
    }

    #[test]
    fn directories_with_much_else_in_them_stay_visible() {
        let home = Path::new("/srv/people/ann");
        for shared in ["/", "/etc", "/tmp", "/etc/ssl", "/usr/local/etc", "/home/ann", "/srv/people"] {
            assert!(is_shared(Path::new(shared), Some(home)), "{shared}");
        }
        for own in ["/etc/remex", "/etc/ssl/private", "/srv/people/ann/.config/remex", "/var/log/remex"] {
            assert!(!is_shared(Path::new(own), Some(home)), "{own}");
        }
    }
}
