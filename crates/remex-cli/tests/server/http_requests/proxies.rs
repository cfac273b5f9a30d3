//! HTTP requests through proxies, and with the certificates that the host trusts.

use super::*;

#[test]
fn proxy_variables_are_used_except_for_no_proxy() {
    let proxy = Web::answering(web_answer(200, &[], "from the proxy"));
    let web = Web::answering(web_answer(200, &[], "from the web"));
    let (proxy_url, port) = (proxy.url(""), web.address().port());
    let body = |env: &[(&str, &str)], url: &str| {
        let server = server(env);
        let answer = fetch(&server.client(), url, json!({}));
        String::from_utf8(decode(&answer["bodyBase64"])).expect("the answer is text")
    };
    let credentials = proxy_url.replace("http://", "http://user:word@");
    assert_eq!(body(&[("http_proxy", &credentials)], "http://somewhere.example/x?y"), "from the proxy");
    let asked = proxy.next();
    assert_eq!(asked.line, "GET http://somewhere.example/x?y HTTP/1.1");
    assert_eq!(asked.header("proxy-authorization"), Some(format!("Basic {}", encode("user:word")).as_str()));

    for proxied in ["http_proxy", "all_proxy", "ALL_PROXY"] {
        assert_eq!(body(&[(proxied, &proxy_url)], &web.url("/")), "from the proxy", "{proxied}");
    }
    for direct in ["HTTP_PROXY", "https_proxy", "HTTPS_PROXY"] {
        assert_eq!(body(&[(direct, &proxy_url)], &web.url("/")), "from the web", "{direct}");
    }
    for no_proxy in ["127.0.0.1", "127.0.0.0/8", "*", "x.example, 127.0.0.1"] {
        for name in ["no_proxy", "NO_PROXY"] {
            let env = [("http_proxy", proxy_url.as_str()), (name, no_proxy)];
            assert_eq!(body(&env, &web.url("/")), "from the web", "{name}={no_proxy}");
        }
    }
    let env = [("all_proxy", proxy_url.as_str()), ("no_proxy", "localhost")];
    assert_eq!(body(&env, &format!("http://localhost:{port}/")), "from the web");
}

#[test]
fn https_uses_a_connect_tunnel_of_the_proxy() {
    let proxy = Web::answering(web_answer(403, &[], ""));
    for name in ["https_proxy", "HTTPS_PROXY", "all_proxy"] {
        let server = server(&[(name, &proxy.url(""))]);
        let (code, message) = failure(&server.client(), "https://somewhere.example/", json!({}));
        assert_eq!((code, message.starts_with("http/request failed: ")), (-32603, true), "{message}");
        assert_eq!(proxy.next().line, "CONNECT somewhere.example:443 HTTP/1.1");
    }
}

#[test]
fn an_unusable_proxy_is_named_and_affects_only_its_scheme() {
    let web = Web::answering(web_answer(200, &[], "ok"));
    for (variable, url) in [("http_proxy", web.url("/")), ("https_proxy", "https://127.0.0.1/".to_owned())] {
        for (proxy, why) in [("not a proxy", ""), ("ftp://127.0.0.1:1", "its scheme is `ftp`")] {
            let server = server(&[(variable, proxy)]);
            let client = server.client();
            let (code, message) = failure(&client, &url, json!({}));
            assert_eq!(code, -32603);
            let cannot = "with which the server was started, cannot be used";
            let expected = format!("http/request failed: the proxy in `{variable}`, {cannot}: {why}");
            assert!(message.starts_with(&expected), "{message}");
            if variable == "https_proxy" {
                assert_eq!(fetch(&client, &web.url("/"), json!({}))["status"], 200);
            }
        }
    }
    assert_eq!(failure(&server(&[("all_proxy", "x://y")]).client(), &web.url("/"), json!({})).0, -32603);
}

#[test]
fn a_root_store_that_is_not_a_file_fails_https_without_an_endless_wait() {
    let path = "/dev/zero";
    let server = server(&[("SSL_CERT_FILE", path)]);
    let client = server.client();
    let message = format!("http/request failed: `SSL_CERT_FILE` names `{path}`, which is not a regular file");
    assert_eq!(failure(&client, "https://127.0.0.1/", json!({})), (-32603, message));
    let web = Web::answering(web_answer(200, &[], "ok"));
    assert_eq!(fetch(&client, &web.url("/"), json!({}))["status"], 200);
}

#[test]
fn https_trusts_the_configured_roots_of_the_host() {
    let key =
        rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate can be made");
    let directory = tempfile::tempdir().expect("a directory can be made");
    let root = directory.path().join("root.pem");
    std::fs::write(&root, key.cert.pem()).expect("a file can be written");
    let port = tls_server(&key);
    let url = format!("https://localhost:{port}/secure");

    let trusting = server(&[("SSL_CERT_FILE", root.to_str().expect("the path is text"))]);
    let answer = fetch(&trusting.client(), &url, json!({}));
    assert_eq!(decode(&answer["bodyBase64"]), b"GET /secure HTTP/1.1");

    let strict = server(&[]);
    let error =
        strict.client().call("http/request", params(&url, json!({}))).expect_err("nobody vouches for it");
    assert_eq!(error["data"]["kind"], "httpFailed");
    let message = error["message"].as_str().expect("an error has a message");
    assert!(message.contains("invalid peer certificate"), "{message}");
    let hint = error["data"]["hint"].as_str().expect("what to do is told");
    assert!(hint.contains("SSL_CERT_FILE"), "{hint}");
}

/// Starts a server that would rather speak HTTP/2, and answers every TLS request with its first line.
fn tls_server(key: &rcgen::CertifiedKey<rcgen::KeyPair>) -> u16 {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let private = rustls::pki_types::PrivateKeyDer::Pkcs8(key.signing_key.serialize_der().into());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("there are versions of TLS")
        .with_no_client_auth()
        .with_single_cert(vec![key.cert.der().clone()], private)
        .expect("the key fits the certificate");
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let config = Arc::new(config);
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
    let port = listener.local_addr().expect("a listener has an address").port();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (stream, config) = (stream.expect("connections come"), Arc::clone(&config));
            thread::spawn(move || {
                let connection = rustls::ServerConnection::new(config).expect("the terms are complete");
                let mut reader = BufReader::new(rustls::StreamOwned::new(connection, stream));
                while let Some(request) = read_web_request(&mut reader) {
                    let answer = web_answer(200, &[], &request.line);
                    reader.get_mut().write_all(&answer).expect("the client reads");
                }
            });
        }
    });
    port
}
