//! `remex http`: what is sent, what is printed, and the exit codes.

use std::{
    fs,
    io::{Read as _, Write as _},
    os::unix::fs::{PermissionsExt as _, symlink},
    process::Stdio,
    sync::{Mutex, mpsc::channel},
};

use crate::{
    files::{World, said},
    home::{self, Home},
    support::{InTime as _, Patient, Web, web_answer},
};

/// Starts a web server that says what it was asked.
fn echo() -> Web {
    Web::start(|request, stream| {
        let answer = match request.target() {
            "/moved" => web_answer(302, &["Location: /there"], "moved"),
            "/missing" => web_answer(404, &["X-Why: gone"], "not here"),
            _ => web_answer(200, &["X-Seen: yes"], [b"got ", &request.body[..]].concat()),
        };
        stream.write_all(&answer).unwrap();
    })
}

#[test]
fn a_url_is_fetched_from_the_environment_or_locally() {
    let (world, web) = (World::new(), echo());
    for args in [&["http", "--on", "build"][..], &["http"]] {
        let url = web.url("/thing");
        assert_eq!(world.say(&[args, &[url.as_str()]].concat()), said(0, "got ", ""));
        let seen = web.next();
        assert_eq!((seen.method(), seen.target(), seen.header("content-type")), ("GET", "/thing", None));
        assert!(seen.header("user-agent").is_some_and(|agent| agent.starts_with("remex/")), "{seen:?}");
    }
}

#[test]
fn method_headers_and_body_are_sent_verbatim() {
    let (world, web) = (World::new(), echo());
    let url = web.url("/");
    let url = url.as_str();
    let ask = |args: &[&str]| {
        let answered = world.say(&[&["http", "--on", "build"], args].concat());
        assert_eq!((answered.code, answered.err.as_str()), (Some(0), ""), "{args:?}");
        (answered.out, web.next())
    };
    let (out, seen) =
        ask(&["PUT", url, "-H", "X-One: 1", "-H", "X-One: 2", "-H", "User-Agent:", "-d", "a=1", "-d", "b"]);
    assert_eq!((out.as_str(), seen.method()), ("got a=1&b", "PUT"));
    let ones: Vec<_> =
        seen.headers.iter().filter(|(name, _)| name == "x-one").map(|(_, value)| value).collect();
    assert_eq!(ones, ["1", "2"]);
    assert_eq!(seen.header("content-type"), Some("application/x-www-form-urlencoded"));
    assert_eq!(seen.header("user-agent"), None);
    // Files and standard input travel unchanged.
    fs::write(world.here.path("body"), b"\xff\r\n\0 end\n").unwrap();
    let (_, seen) = ask(&[url, "-d", "@body", "-H", "content-type: application/json"]);
    assert_eq!((seen.method(), &seen.body[..]), ("POST", &b"\xff\r\n\0 end\n"[..]));
    assert_eq!(seen.header("content-type"), Some("application/json"));
    let piped =
        world.here.say_with(&["http", "--on", "build", "-X", "PATCH", url, "-d", "@-"], b"from a pipe\n");
    assert_eq!(piped, said(0, "got from a pipe\n", ""));
    assert_eq!(web.next().method(), "PATCH");
    // A secret of the server stays there.
    let (_, seen) = ask(&[url, "--header-from-env", "X-Home: at =HOME"]);
    let home = fs::canonicalize(world.there.path("")).unwrap();
    assert_eq!(
        seen.header("x-home")
            .and_then(|value| value.strip_prefix("at "))
            .map(fs::canonicalize)
            .unwrap()
            .unwrap(),
        home
    );
}

#[test]
fn statuses_and_redirects_behave_like_curl() {
    let (world, web) = (World::new(), echo());
    let ask = |args: &[&str], path: &str| {
        let url = web.url(path);
        world.say(&[&["http", "--on", "build"], args, &[url.as_str()]].concat())
    };
    assert_eq!(ask(&[], "/missing"), said(0, "not here", ""));
    assert_eq!(
        ask(&["-f"], "/missing"),
        said(
            22,
            "",
            "remex: the web server answered with status 404\n  hint: omit `--fail` to see the body\n"
        )
    );
    assert_eq!(ask(&["-f"], "/"), said(0, "got ", ""));
    assert_eq!(ask(&[], "/moved"), said(0, "moved", ""));
    assert_eq!(ask(&["-L"], "/moved"), said(0, "got ", ""));
    let shown = ask(&["-i"], "/missing");
    assert_eq!(shown.out, "HTTP/1.1 404\r\nx-why: gone\r\ncontent-length: 8\r\n\r\nnot here");
    let head = ask(&["-I"], "/nothing");
    assert!(
        head.out.starts_with("HTTP/1.1 200\r\nx-seen: yes\r\n") && head.out.ends_with("\r\n\r\n"),
        "{head:?}"
    );
}

#[test]
fn a_response_is_shown_as_it_arrives() {
    let world = World::new();
    let (go, gone) = channel::<()>();
    let gone = Mutex::new(gone);
    let web = Web::start(move |_, stream| {
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nfirst").unwrap();
        gone.lock().unwrap().recv().unwrap();
        stream.write_all(b"later").unwrap();
    });
    let mut ask = world.here.remex(&["http", "--on", "build", &web.url("/")]);
    let mut ask = ask.stdout(Stdio::piped()).spawn().unwrap();
    let mut stdout = Patient::new(ask.stdout.take().unwrap());
    let mut part = [0; 5];
    stdout.read_exact(&mut part).unwrap();
    assert_eq!(&part, b"first");
    go.send(()).unwrap();
    stdout.read_exact(&mut part).unwrap();
    assert_eq!(&part, b"later");
    assert_eq!(ask.ended().code(), Some(0));
}

#[test]
fn a_file_is_replaced_once_the_body_is_complete() {
    let world = World::new();
    let web = Web::start(|request, stream| {
        let answer = match request.target() {
            "/whole" => web_answer(200, &[], "new content"),
            _ => b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nonly a part".to_vec(),
        };
        stream.write_all(&answer).unwrap();
        stream.shutdown(std::net::Shutdown::Both).unwrap();
    });
    let target = world.here.path("target");
    fs::write(&target, "old").unwrap();
    fs::set_permissions(&target, fs::Permissions::from_mode(0o640)).unwrap();
    symlink("target", world.here.path("link")).unwrap();
    let broken = world.say(&["http", "--on", "build", "-o", "link", &web.url("/broken")]);
    assert_eq!((broken.code, broken.out.as_str()), (Some(1), ""), "{broken:?}");
    assert!(broken.err.starts_with("remex: cannot request `http://"), "{broken:?}");
    assert_eq!(fs::read_to_string(&target).unwrap(), "old");
    world.quietly(&["http", "--on", "build", "-o", "link", &web.url("/whole")]);
    world.quietly(&["http", "--on", "build", "-o", "fresh", &web.url("/whole")]);
    for name in ["target", "fresh"] {
        assert_eq!(fs::read_to_string(world.here.path(name)).unwrap(), "new content");
    }
    assert!(world.here.path("link").is_symlink());
    assert_eq!(target.metadata().unwrap().permissions().mode() & 0o777, 0o640);
    let names: Vec<_> =
        fs::read_dir(world.here.path("")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names.len(), 3, "no partial file is left: {names:?}");
}

#[test]
fn http_failures_are_explained() {
    let home = Home::new();
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", nobody.local_addr().unwrap());
    drop(nobody);
    let refused = home.say(&["http", &url]);
    assert_eq!((refused.code, refused.out.as_str()), (Some(1), ""));
    assert!(refused.err.starts_with(&format!("remex: cannot request `{url}`: ")), "{refused:?}");
    for (args, part) in [
        (&["example.com"][..], "`example.com` is not a URL\n  hint: write `http://example.com`"),
        (&["PUT", "http://h/", "-X", "POST"], "both `PUT` and `-X POST` are given"),
        (&["http://h/", "-H", "nonsense"], "it is not a header"),
        (&["http://h/", "-d", "@missing"], "cannot read `missing`"),
        (&["http://h/", "-o", "."], "cannot write to `.`: it is a directory"),
    ] {
        let said = home::said(&home.remex(&[&["http"], args].concat()).stdin(Stdio::null()).finished());
        assert_eq!(said.code, Some(2), "{args:?} {said:?}");
        assert!(said.err.contains(part), "{args:?} {said:?}");
    }
}
