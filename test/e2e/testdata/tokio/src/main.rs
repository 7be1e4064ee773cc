//! Tells clients who they are, and asks such servers, with tokio:
//!
//!     tokio-net serve ADDR:PORT       HTTP over TCP, anything over UDP
//!     tokio-net fetch URL...          http://ADDR:PORT or udp://ADDR:PORT, all at once
//!
//! As fetch, it prints what it is answered in the order of its arguments.

use std::io::{Error, Result};
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::runtime::Builder;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let runtime = Builder::new_multi_thread()
        .worker_threads(2)
        .enable_io()
        .build()?;
    match args.first().map(String::as_str) {
        Some("serve") if args.len() == 2 => runtime.block_on(serve(&args[1])),
        Some("fetch") if args.len() > 1 => runtime.block_on(fetch_all(&args[1..])),
        _ => Err(Error::other("usage: serve ADDR:PORT | fetch URL...")),
    }
}

async fn serve(addr: &str) -> Result<()> {
    let datagrams = UdpSocket::bind(addr).await?;
    let listener = TcpListener::bind(addr).await?;
    tokio::spawn(async move {
        let mut buf = [0; 2048];
        loop {
            let (_, from) = datagrams.recv_from(&mut buf).await.expect("receive");
            let answer = format!("{}\n", from.ip());
            datagrams.send_to(answer.as_bytes(), from).await.expect("send");
        }
    });
    loop {
        let (connection, from) = listener.accept().await?;
        tokio::spawn(async move {
            if let Err(err) = answer(connection, from).await {
                eprintln!("{from}: {err}");
            }
        });
    }
}

async fn answer(mut connection: TcpStream, from: SocketAddr) -> Result<()> {
    let mut request = Vec::new();
    while !request.windows(4).any(|w| w == b"\r\n\r\n") {
        if connection.read_buf(&mut request).await? == 0 {
            return Ok(()); // gone before it asked
        }
    }
    let body = format!("{}\n", from.ip());
    let head = format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", body.len());
    connection.write_all((head + &body).as_bytes()).await?;
    connection.shutdown().await
}

async fn fetch_all(urls: &[String]) -> Result<()> {
    let fetches: Vec<_> = urls.iter().cloned().map(|url| tokio::spawn(fetch(url))).collect();
    for f in fetches {
        print!("{}", f.await.map_err(Error::other)??);
    }
    Ok(())
}

async fn fetch(url: String) -> Result<String> {
    match url.split_once("://") {
        Some(("http", addr)) => fetch_http(addr).await,
        Some(("udp", addr)) => fetch_udp(addr).await,
        _ => Err(Error::other(format!("{url}: not http or udp"))),
    }
}

async fn fetch_http(addr: &str) -> Result<String> {
    let mut connection = TcpStream::connect(addr).await?;
    let request = format!("GET / HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\n\r\n");
    connection.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer).await?;
    match answer.split_once("\r\n\r\n") {
        Some((head, body)) if head.starts_with("HTTP/1.1 200 ") => Ok(body.to_string()),
        _ => Err(Error::other(format!("{addr} answered {answer:?}"))),
    }
}

async fn fetch_udp(addr: &str) -> Result<String> {
    let to: SocketAddr = addr.parse().map_err(Error::other)?;
    let any: SocketAddr = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" }.parse().map_err(Error::other)?;
    let socket = UdpSocket::bind(any).await?;
    socket.connect(to).await?;
    socket.send(b"hello").await?;
    let mut buf = [0; 2048];
    let n = socket.recv(&mut buf).await?;
    Ok(String::from_utf8_lossy(&buf[..n]).into_owned())
}
