//! Proxies and trusted certificates, from the usual environment variables.

use std::{env, path::PathBuf};

use remex_server::{Proxies, Trust};

/// Reads which proxies to use.
pub(crate) fn proxies() -> Proxies {
    Proxies {
        // `HTTP_PROXY` is ignored: CGI programs get it from the request header `Proxy`.
        http: first(&["http_proxy"]),
        https: first(&["https_proxy", "HTTPS_PROXY"]),
        all: first(&["all_proxy", "ALL_PROXY"]),
        none: first(&["no_proxy", "NO_PROXY"]),
    }
}

/// Reads which certificate authorities to trust.
pub(crate) fn trust() -> Trust {
    let file = env::var_os("SSL_CERT_FILE").filter(|file| !file.is_empty()).map(PathBuf::from);
    let directories: Vec<PathBuf> = env::var_os("SSL_CERT_DIR")
        .map(|list| env::split_paths(&list).filter(|path| !path.as_os_str().is_empty()).collect())
        .unwrap_or_default();
    if file.is_none() && directories.is_empty() {
        return Trust::System;
    }
    Trust::Only { file, directories }
}

fn first(names: &[&str]) -> Option<String> {
    names.iter().find_map(|name| env::var(name).ok().filter(|value| !value.is_empty()))
}
