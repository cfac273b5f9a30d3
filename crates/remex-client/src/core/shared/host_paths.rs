//! Resolves relative paths of requests on the remote host: from its working directory, and from the user's home.

use std::{path::Path, pin::Pin, sync::Arc};

use remex_proto::{
    Call, HostPath,
    environment::{GetInfo, Info},
    path::from_bytes,
};

use super::Core;
use crate::{Error, base::error::usage};

impl Core {
    /// Makes a path absolute that is relative to the working directory of the server, or to the home of its user.
    pub(crate) async fn resolve(self: &Arc<Self>, path: HostPath) -> Result<HostPath, Error> {
        if is_absolute(&path) {
            return Ok(path);
        }
        match &self.welcome().environment_info {
            Some(info) => resolved(&path, info),
            None => resolved(&path, self.host_info.get_or_try_init(|| self.ask_info()).await?),
        }
    }

    /// Makes the paths of a file request absolute.
    pub(super) async fn resolve_paths(self: &Arc<Self>, call: &mut Call) -> Result<(), Error> {
        for path in paths(call).into_iter().flatten() {
            if !is_absolute(path) {
                *path = self.resolve(path.clone()).await?;
            }
        }
        Ok(())
    }

    /// Asks the server about its host; the call has no paths to be resolved.
    fn ask_info(self: &Arc<Self>) -> Pin<Box<dyn Future<Output = Result<Info, Error>> + Send + Sync + '_>> {
        Box::pin(async move { self.call(GetInfo {}.into()).await?.decode("environment/info") })
    }
}

/// Returns whether a path needs no resolving; one with a host name or a drive letter is the server's to refuse.
pub(crate) fn is_absolute(path: &HostPath) -> bool {
    path.as_bytes().is_none_or(|bytes| bytes.starts_with(b"/"))
}

fn resolved(path: &HostPath, info: &Info) -> Result<HostPath, Error> {
    let bytes = path.as_bytes().unwrap_or_default();
    let (base, what, rest) = match bytes.strip_prefix(b"~") {
        Some(rest) if rest.is_empty() || rest.starts_with(b"/") => {
            (&info.user_home_dir, "the home of its user", rest.strip_prefix(b"/").unwrap_or(rest))
        }
        Some(_) => {
            let message = format!("cannot use `{path}` as a path: only `~` alone is a home directory");
            return Err(usage(
                message,
                format!("give an absolute path, or `./{path}` for a file of this name"),
            ));
        }
        None => (&info.cwd, "its working directory", bytes),
    };
    let Some(base) = base.as_ref().and_then(HostPath::as_bytes) else {
        let message = format!("cannot use `{path}` as a path: the server does not tell {what}");
        return Err(usage(message, "give an absolute path"));
    };
    let mut joined = base.to_vec();
    if !rest.is_empty() {
        if !joined.ends_with(b"/") {
            joined.push(b'/');
        }
        joined.extend_from_slice(rest);
    }
    // As a URI it loses `.` and `..`, as it would on its way to the server, which answers without them.
    let joined = from_bytes(&joined).map(|path| HostPath::from(path.to_owned()).to_uri());
    let joined = joined.and_then(|uri| HostPath::parse(&uri).ok()).ok_or_else(|| {
        usage(format!("cannot use `{path}` as a path: it is not Unicode"), "give an absolute path")
    })?;
    native(&joined).map(|path| HostPath::from(path.to_owned()))
}

fn native(path: &HostPath) -> Result<&Path, Error> {
    path.native()
        .map_err(|error| usage(format!("cannot use `{path}` as a path: {error}"), "give another path"))
}

/// Returns the paths of a file request.
fn paths(call: &mut Call) -> [Option<&mut HostPath>; 2] {
    let path = match call {
        Call::FsCopy(request) => {
            return [Some(&mut request.source_path), Some(&mut request.destination_path)];
        }
        Call::FsRename(request) => {
            return [Some(&mut request.source_path), Some(&mut request.destination_path)];
        }
        Call::FsReadFile(request) => &mut request.path,
        Call::FsWriteFile(request) => &mut request.path,
        Call::FsCreateDirectory(request) => &mut request.path,
        Call::FsGetMetadata(request) => &mut request.path,
        Call::FsCanonicalize(request) => &mut request.path,
        Call::FsReadDirectory(request) => &mut request.path,
        Call::FsWalk(request) => &mut request.path,
        Call::FsSearch(request) => &mut request.path,
        Call::FsRemove(request) => &mut request.path,
        Call::FsOpen(request) => &mut request.path,
        Call::FsSetPermissions(request) => &mut request.path,
        Call::FsSetTimes(request) => &mut request.path,
        Call::FsSymlink(request) => &mut request.path,
        Call::FsReadLink(request) => &mut request.path,
        Call::FsHash(request) => &mut request.path,
        Call::FsWatch(request) => &mut request.path,
        // The others are about what was opened or is watched, or no file requests.
        _ => return [None, None],
    };
    [Some(path), None]
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use serde_json::json;

    use super::*;

    #[test]
    fn relative_paths_are_resolved_against_the_working_directory_and_tildes_against_home() {
        let info = json!({
            "shell": {"name": "sh", "path": "file:///bin/sh"}, "cwd": "file:///srv", "userHomeDir": "file:///home/ann",
        });
        let info: Info = serde_json::from_value(info).unwrap();
        let of = |path: &str| resolved(&HostPath::from(PathBuf::from(path)), &info);
        for (path, expected) in [
            ("a/b", "/srv/a/b"),
            (".", "/srv"),
            ("../b/./c", "/b/c"),
            ("~", "/home/ann"),
            ("~/a", "/home/ann/a"),
            ("./~a", "/srv/~a"),
        ] {
            assert_eq!(of(path).unwrap().to_string(), expected);
        }
        let error = of("~bob/a").unwrap_err();
        assert!(error.hint().is_some_and(|hint| hint.contains("`./~bob/a`")), "{error}");
        let mut info = info;
        info.cwd = None;
        let error = resolved(&HostPath::from(PathBuf::from("a")), &info).unwrap_err();
        assert_eq!(error.hint(), Some("give an absolute path"), "{error}");
    }
}
