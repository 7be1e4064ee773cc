// Command fetch prints the answers to HTTP requests and to UDP datagrams, in
// order: of http://… the body, of udp://ADDR:PORT the first datagram. With http4://… it knows IPv4
// only, and prints its own address and the server's before the body.
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"strings"
	"time"
)

// limit is for hangs only.
const limit = 10 * time.Minute

func main() {
	log.SetFlags(0)
	for _, url := range os.Args[1:] {
		get := overHTTP
		switch {
		case strings.HasPrefix(url, "udp"):
			get = overUDP
		case strings.HasPrefix(url, "http4"):
			get = overIPv4
		}
		answer, err := get(url)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Print(answer)
	}
}

func overHTTP(url string) (string, error) {
	client := http.Client{Timeout: limit}
	resp, err := client.Get(url)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s: %s", url, resp.Status)
	}
	body, err := io.ReadAll(resp.Body)
	return string(body), err
}

func overIPv4(url string) (string, error) {
	var names string
	dial := func(ctx context.Context, _, addr string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp4", addr)
		if err == nil {
			local, remote := conn.LocalAddr().(*net.TCPAddr), conn.RemoteAddr()
			names = fmt.Sprintf("%s %s\n", local.IP, remote)
		}
		return conn, err
	}
	client := http.Client{Timeout: limit, Transport: &http.Transport{DialContext: dial}}
	resp, err := client.Get(strings.Replace(url, "http4", "http", 1))
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return names + string(body), err
}

func overUDP(url string) (string, error) {
	network, addr, _ := strings.Cut(url, "://")
	conn, err := net.Dial(network, addr)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(limit)); err != nil {
		return "", err
	}
	if _, err := conn.Write([]byte("who am I\n")); err != nil {
		return "", err
	}
	buf := make([]byte, 2048)
	n, err := conn.Read(buf)
	return string(buf[:n]), err
}
