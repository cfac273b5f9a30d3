//! Watches through the client library.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_reports_changes_and_an_overflow_after_a_disconnect() {
    for server in servers() {
        let proxy = DisconnectingProxy::start(server.address(), &[]);
        let (fs, place) = (connect(proxy.address()).await, Place::new());
        place.make(&["d/e"]);
        let mut watch = fs.watch(place.path(""), Depth::Everything).await.unwrap();
        let mut shallow = fs.watch(place.path("d"), Depth::Directory).await.unwrap();
        for round in 0..3 {
            let name = format!("d/e/{round}");
            let path = place.write(&name, "x");
            loop {
                let news = timeout(PATIENCE, watch.next()).await.unwrap().unwrap();
                assert!(!news.overflow, "{news:?}");
                let is_it = |change: &remex_client::fs::Change| {
                    change.path.native().unwrap() == path && change.kind == ChangeKind::Created
                };
                if news.changes.iter().any(is_it) {
                    break;
                }
            }
            proxy.cut();
            loop {
                // What was told before the cut may come first.
                if timeout(PATIENCE, watch.next()).await.unwrap().unwrap().overflow {
                    break;
                }
            }
        }
        place.write("d/f", "x");
        loop {
            let news = timeout(PATIENCE, shallow.next()).await.unwrap().unwrap();
            let below = place.path("d/e");
            assert!(news.changes.iter().all(|change| change.path.native().unwrap().parent() != Some(&below)));
            if news.changes.iter().any(|change| change.path.native().unwrap() == place.path("d/f")) {
                break;
            }
            if news.overflow {
                place.write("d/f", "y");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_of_a_missing_path_is_refused_and_a_lost_session_ends_a_watch() {
    let server = Server::unix(&[]);
    let client = Client::connect(Target::parse(server.address()).unwrap()).await.unwrap();
    let (fs, place) = (client.fs(), Place::new());
    let refused = fs.watch(place.path("nothing"), Depth::Everything).await.unwrap_err();
    assert_eq!(refused.kind(), Some(ErrorKind::NotFound));
    let mut watch = fs.watch(place.path(""), Depth::Everything).await.unwrap();
    let (ended, ()) = tokio::join!(watch.next(), client.close());
    assert!(matches!(ended, Err(Error::Lost(_))), "{ended:?}");
}
