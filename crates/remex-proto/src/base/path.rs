//! Paths on the wire: `file:` URIs, or plain absolute paths taken verbatim.
//!
//! Hand-written, because a general URL parser brings host name tables that paths do not need.
//! Start at [`HostPath`].

use std::{
    env::consts::OS,
    fmt,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A path as the client spelled it, and the native path it refers to on this host.
///
/// It consists of bytes that slashes separate, also in a client on Windows.
///
/// ```
/// use remex_proto::HostPath;
///
/// let path = HostPath::parse("file:///a/b%20c/../d").unwrap();
/// assert_eq!(path.native().unwrap(), std::path::Path::new("/a/d"));
/// assert_eq!(HostPath::parse("/a/b%20c").unwrap().to_uri(), "file:///a/b%2520c");
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct HostPath(Spelling);

#[derive(Clone, PartialEq, Eq)]
enum Spelling {
    Native(Vec<u8>),
    Uri {
        uri: String,
        native: Vec<u8>,
    },
    /// A host name or drive letter: a path on another machine.
    Foreign {
        uri: String,
    },
}

impl HostPath {
    /// Parses a `file:` URI or a plain absolute path.
    pub fn parse(text: &str) -> Result<Self, PathError> {
        let here = if text.starts_with('/') { Spelling::Native(text.into()) } else { parse_uri(text)? };
        match &here {
            Spelling::Native(native) | Spelling::Uri { native, .. } if native.contains(&0) => {
                Err(PathError::Invalid { uri: text.to_owned() })
            }
            _ => Ok(Self(here)),
        }
    }

    /// Returns the native path on this host; fails for a path on another machine.
    ///
    /// Where names are Unicode, as on Windows, it also fails for a path that is not UTF-8.
    pub fn native(&self) -> Result<&Path, PathError> {
        self.as_bytes().and_then(from_bytes).ok_or_else(|| PathError::Invalid { uri: self.to_uri() })
    }

    /// Returns the bytes of the path; `None` for a path with a host name or a drive letter.
    pub fn as_bytes(&self) -> Option<&[u8]> {
        match &self.0 {
            Spelling::Native(native) | Spelling::Uri { native, .. } => Some(native),
            Spelling::Foreign { .. } => None,
        }
    }

    /// Returns whether this is no path at all, which is the default value.
    pub fn is_empty(&self) -> bool {
        self.as_bytes().is_some_and(<[u8]>::is_empty)
    }

    /// Returns the path as a URI with upper-case escapes.
    pub fn to_uri(&self) -> String {
        match &self.0 {
            Spelling::Native(native) | Spelling::Uri { native, .. } => to_uri(native),
            Spelling::Foreign { uri } => uri.clone(),
        }
    }
}

impl From<PathBuf> for HostPath {
    /// Wraps an absolute path on this host.
    fn from(native: PathBuf) -> Self {
        Self(Spelling::Native(native.into_os_string().into_encoded_bytes()))
    }
}

/// Stands for a path that was left out; no path on the wire is empty.
impl Default for HostPath {
    fn default() -> Self {
        Self(Spelling::Native(Vec::new()))
    }
}

/// Shows the client's own spelling.
impl fmt::Display for HostPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Spelling::Native(native) => String::from_utf8_lossy(native).fmt(f),
            Spelling::Uri { uri, .. } | Spelling::Foreign { uri } => f.write_str(uri),
        }
    }
}

impl fmt::Debug for HostPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostPath({self})")
    }
}

impl Serialize for HostPath {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.to_uri())
    }
}

impl<'de> Deserialize<'de> for HostPath {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::parse(&String::deserialize(deserializer)?).map_err(de::Error::custom)
    }
}

/// Returns the path with these bytes; `None` if this platform has no such path, as Windows for bytes that are not
/// UTF-8.
pub fn from_bytes(bytes: &[u8]) -> Option<&Path> {
    native::os_str(bytes).map(Path::new)
}

/// Why a string is not a path on this host. The base dialect fixes the messages.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// Neither a URI nor absolute.
    #[error("invalid URI: relative URL without a base")]
    Relative,
    /// Not a `file:` URI.
    #[error("unsupported path URI scheme `{scheme}`")]
    Scheme {
        /// The scheme in lower case.
        scheme: String,
    },
    /// A URI with a query.
    #[error("query parameters are not allowed in path URIs")]
    Query,
    /// A URI with a fragment.
    #[error("fragments are not allowed in path URIs")]
    Fragment,
    /// Credentials, a port, a NUL byte, another host, a drive letter.
    #[error("'{uri}' is invalid on '{OS}'")]
    Invalid {
        /// The path as given.
        uri: String,
    },
}

fn parse_uri(uri: &str) -> Result<Spelling, PathError> {
    let (scheme, rest) = split_scheme(uri).ok_or(PathError::Relative)?;
    if !scheme.eq_ignore_ascii_case("file") {
        return Err(PathError::Scheme { scheme: scheme.to_ascii_lowercase() });
    }
    let (rest, has_fragment) = rest.split_once('#').map_or((rest, false), |(rest, _)| (rest, true));
    if rest.contains('?') {
        return Err(PathError::Query);
    }
    if has_fragment {
        return Err(PathError::Fragment);
    }
    let (host, path) = match rest.strip_prefix("//") {
        Some(rest) => rest.split_at(rest.find('/').unwrap_or(rest.len())),
        None if rest.starts_with('/') => ("", rest),
        None => return Err(PathError::Relative),
    };
    if host.contains(['@', ':']) {
        return Err(PathError::Invalid { uri: uri.to_owned() });
    }
    let uri = uri.to_owned();
    if !(host.is_empty() || host.eq_ignore_ascii_case("localhost")) || has_drive_letter(path.as_bytes()) {
        return Ok(Spelling::Foreign { uri });
    }
    Ok(Spelling::Uri { uri, native: resolve(&percent_decode(path)) })
}

fn split_scheme(uri: &str) -> Option<(&str, &str)> {
    let (scheme, rest) = uri.split_once(':')?;
    let is_scheme = scheme.starts_with(|first: char| first.is_ascii_alphabetic())
        && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c));
    is_scheme.then_some((scheme, rest))
}

/// Returns whether the path starts with a drive letter; an escaped colon is part of a file name.
fn has_drive_letter(path: &[u8]) -> bool {
    let slashes = path.iter().take_while(|byte| **byte == b'/').count();
    matches!(&path[slashes..], [letter, b':' | b'|'] | [letter, b':' | b'|', b'/', ..] if letter.is_ascii_alphabetic())
}

/// Decodes `%XX`; a percent sign without two digits is literal.
fn percent_decode(text: &str) -> Vec<u8> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        if let (b'%', &[high, low, ref after @ ..]) = (byte, tail)
            && let (Some(high), Some(low)) = (hex(high), hex(low))
        {
            decoded.push(high << 4 | low);
            rest = after;
        } else {
            decoded.push(byte);
            rest = tail;
        }
    }
    decoded
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok())
}

/// Resolves `.`, `..` and repeated slashes lexically, regardless of symbolic links.
fn resolve(path: &[u8]) -> Vec<u8> {
    let mut segments = Vec::new();
    for segment in path.split(|byte| *byte == b'/') {
        match segment {
            b"" | b"." => {}
            b".." => {
                segments.pop();
            }
            name => segments.push(name),
        }
    }
    let mut resolved = vec![b'/'];
    resolved.extend(segments.join(&b'/'));
    resolved
}

fn to_uri(native: &[u8]) -> String {
    use fmt::Write as _;

    let mut rest = native;
    let is_drive = has_drive_letter(rest);
    let mut uri = String::with_capacity("file://".len() + rest.len());
    uri.push_str("file://");
    loop {
        let is_escaped = |byte: u8| !LITERAL[usize::from(byte)] || is_drive && matches!(byte, b':' | b'|');
        let length = rest.iter().position(|byte| is_escaped(*byte)).unwrap_or(rest.len());
        let (literal, after) = rest.split_at(length);
        uri.push_str(str::from_utf8(literal).expect("literal bytes are ASCII"));
        let Some((byte, after)) = after.split_first() else { return uri };
        write!(uri, "%{byte:02X}").expect("writing to a string never fails");
        rest = after;
    }
}

/// The bytes that need no escape in a URI; a table, because listings contain many paths.
const LITERAL: [bool; 256] = {
    let mut literal = [false; 256];
    let mut byte = 0;
    while byte < literal.len() {
        literal[byte] = match byte as u8 {
            b'"' | b'#' | b'%' | b'<' | b'>' | b'?' | b'\\' | b'^' | b'`' | b'{' | b'}' => false,
            byte => byte.is_ascii_graphic(),
        };
        byte += 1;
    }
    literal
};

/// What a name may contain on this platform.
mod native {
    use std::ffi::OsStr;

    #[cfg(unix)]
    pub(crate) fn os_str(bytes: &[u8]) -> Option<&OsStr> {
        Some(std::os::unix::ffi::OsStrExt::from_bytes(bytes))
    }

    #[cfg(not(unix))]
    pub(crate) fn os_str(bytes: &[u8]) -> Option<&OsStr> {
        str::from_utf8(bytes).ok().map(OsStr::new)
    }
}

#[cfg(test)]
mod tests {
    use std::{ffi::OsStr, os::unix::ffi::OsStrExt as _};

    use proptest::prelude::*;

    use super::*;

    fn native(text: &str) -> PathBuf {
        HostPath::parse(text).unwrap().native().unwrap().to_owned()
    }

    fn refused(text: &str) -> String {
        HostPath::parse(text).unwrap_err().to_string()
    }

    #[test]
    fn every_spelling_of_a_path_names_it() {
        for text in [
            "/a/b",
            "file:///a/b",
            "file://localhost/a/b",
            "file://LOCALHOST/a/b",
            "FILE:///a/b",
            "file:/a/b",
            "file:///a/b/",
            "file:///a//b",
            "file:////a/b",
            "file:///./a/x/../b/.",
            "file:///../a/b",
            "file:///%61/b",
            "file:///a%2Fb",
            "file:///a%2fx%2F..%2fb",
        ] {
            assert_eq!(native(text), Path::new("/a/b"), "{text}");
        }
        for text in ["file:///", "file://", "file://localhost", "file:/", "file:///.."] {
            assert_eq!(native(text), Path::new("/"), "{text}");
        }
    }

    #[test]
    fn escapes_are_decoded_to_bytes() {
        assert_eq!(native("file:///%FF").as_os_str().as_bytes(), b"/\xff");
        assert_eq!(native("file:///é%C3%A9"), Path::new("/éé"));
        assert_eq!(native("file:///100%"), Path::new("/100%"));
        assert_eq!(native("file:///%zz%4"), Path::new("/%zz%4"));
    }

    #[test]
    fn a_plain_path_is_taken_verbatim() {
        for text in ["/a%20b", "/a/../b//c/", "/a?b#c", "/C:/x"] {
            assert_eq!(native(text).as_os_str(), OsStr::new(text));
        }
    }

    #[test]
    fn an_invalid_path_is_refused_with_the_reason() {
        for text in ["", "a/b", "./a", "~", "file", "file:a", "%2Fa", ":x"] {
            assert_eq!(refused(text), "invalid URI: relative URL without a base", "{text}");
        }
        assert_eq!(refused("HTTP://a/b"), "unsupported path URI scheme `http`");
        assert_eq!(refused("file:///a?"), "query parameters are not allowed in path URIs");
        assert_eq!(refused("file:///a?b#c"), "query parameters are not allowed in path URIs");
        assert_eq!(refused("file:///a#b?c"), "fragments are not allowed in path URIs");
        for text in ["file://me@localhost/a", "file://localhost:80/a", "file:///a%00", "/a\0"] {
            assert_eq!(refused(text), format!("'{text}' is invalid on '{OS}'"));
        }
    }

    #[test]
    fn a_path_of_another_machine_decodes_but_names_nothing_here() {
        for text in ["file://server/x", "file:///C:/x", "file:///c|/x", "file:///C:", "file://server"] {
            let path = HostPath::parse(text).unwrap();
            assert_eq!(path.native().unwrap_err().to_string(), format!("'{text}' is invalid on '{OS}'"));
            assert_eq!(path.to_uri(), text);
        }
        assert_eq!(native("file:///C:x"), Path::new("/C:x"));
        assert_eq!(native("file:///C%3A/x"), Path::new("/C:/x"));
    }

    #[test]
    fn uris_in_answers_escape_in_upper_case() {
        let uri = |path: &str| HostPath::from(PathBuf::from(path)).to_uri();
        assert_eq!(uri("/"), "file:///");
        assert_eq!(uri("/a b/%/é"), "file:///a%20b/%25/%C3%A9");
        assert_eq!(uri("/C:/x"), "file:///C%3A/x");
        assert_eq!(uri("/a:b/(c)[1]~+@&=$!*',;"), "file:///a:b/(c)[1]~+@&=$!*',;");
    }

    proptest! {
        #[test]
        fn any_path_round_trips(segments in prop::collection::vec("[^/\0]{1,5}|\\PC{1,3}", 0..4)) {
            let path = resolve(segments.join("/").replace('\0', "_").as_bytes());
            let path = from_bytes(&path).unwrap();
            prop_assert_eq!(native(&HostPath::from(path.to_owned()).to_uri()), path);
        }

        #[test]
        fn any_bytes_round_trip(bytes: Vec<u8>) {
            let path = resolve(&bytes.into_iter().filter(|byte| *byte != 0).collect::<Vec<_>>());
            let path = from_bytes(&path).unwrap();
            prop_assert_eq!(native(&HostPath::from(path.to_owned()).to_uri()), path);
        }

        #[test]
        fn no_text_makes_the_parser_panic(text in "(file:)?/{0,3}\\PC*") {
            let _ = HostPath::parse(&text);
        }
    }
}
