// Included by the examples in the documentation that want something to ask.

/// Answers every request with `ok`, and returns its address.
fn web_server() -> std::io::Result<String> {
    use std::io::{Read as _, Write as _};

    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    let url = format!("http://{}", listener.local_addr()?);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.read(&mut [0; 4096]);
            let head = "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 3\r\n";
            let _ = write!(stream, "{head}connection: close\r\n\r\nok\n");
        }
    });
    Ok(url)
}
