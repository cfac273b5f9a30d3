use super::*;

#[test]
fn a_dropped_request_fails_on_the_callback_thread() {
    start().unwrap();
    let (answer, answered) = mpsc::channel();
    let done = Done::new(move |result: io::Result<usize>| {
        let thread = thread::current().name().map(str::to_owned);
        answer.send((thread, result.is_err())).unwrap();
    });
    let tag = crate::Tags::new().tag(0, 0);
    drop(Request::kill(Scope::Server(tag), done));
    let answer = answered.recv_timeout(Duration::from_secs(60)).expect("the request is answered");
    assert_eq!(answer, (Some("remex-answer".into()), true));
}

#[test]
fn a_doubtful_process_that_has_ended_causes_another_scan() {
    let mut child = std::process::Command::new("true").spawn().unwrap();
    let pid = Pid::new(child.id().cast_signed()).unwrap();
    child.wait().unwrap();
    let tag = crate::Tags::new().tag(0, 0);
    let Request::Kill(mut kill) = Request::kill(Scope::Server(tag), Done::new(|_| {})) else {
        unreachable!("it is a kill")
    };
    assert!(kill.settle(), "nothing is unclear");
    kill.unclear.doubtful.insert(pid);
    assert!(!kill.settle(), "its end proves nothing");
}
