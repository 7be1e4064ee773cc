package ftp

import (
	"bufio"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
)

// pair returns two ends of a TCP connection.
func pair(t *testing.T) (near, far net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if near, err = net.Dial("tcp", l.Addr().String()); err == nil {
		far, err = l.Accept()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		near.Close()
		far.Close()
	})
	return near, far
}

// Relay carries what a Session says, and the last words of each side after the other has ended.
func TestRelay(t *testing.T) {
	client, inside := pair(t)
	outside, server := pair(t)
	done := make(chan error, 1)
	go func() { done <- Relay(inside, outside, newSession(false).Config) }()
	fromServer, fromClient := bufio.NewReader(client), bufio.NewReader(server)
	say := func(from net.Conn, at *bufio.Reader, text, want string) {
		t.Helper()
		if _, err := io.WriteString(from, text); err != nil {
			t.Fatal(err)
		}
		if got, err := at.ReadString('\n'); err != nil || got != want {
			t.Fatalf("%q arrives as %q, %v; want %q", text, got, err, want)
		}
	}
	say(server, fromServer, "220 there\r\n", "220 there\r\n")
	say(client, fromClient, "PASV\r\n", "EPSV\r\n")
	say(server, fromServer, "229 (|||256|)\r\n", "227 Entering Passive Mode (198,18,0,1,1,0).\r\n")
	say(client, fromClient, "QUIT\r\n", "QUIT\r\n")
	if err := client.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if rest, err := io.ReadAll(fromClient); err != nil || len(rest) > 0 {
		t.Fatalf("the server reads %q, %v", rest, err)
	}
	say(server, fromServer, "221 bye\r\n", "221 bye\r\n")
	server.Close()
	if rest, err := io.ReadAll(fromServer); err != nil || len(rest) > 0 {
		t.Fatalf("the client reads %q, %v", rest, err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// A line without an end closes both connections, and the client is told why.
func TestRelayEnds(t *testing.T) {
	client, inside := pair(t)
	outside, server := pair(t)
	done := make(chan error, 1)
	go func() { done <- Relay(inside, outside, newSession(true).Config) }()
	if _, err := io.WriteString(client, strings.Repeat("x", LineMax)); err != nil {
		t.Fatal(err)
	}
	if err := <-done; !errors.Is(err, ErrLine) {
		t.Errorf("%v, want %v", err, ErrLine)
	}
	if got, err := io.ReadAll(client); err != nil || string(got) != "421 Connection closed: a line of the control connection is too long.\r\n" {
		t.Errorf("the client reads %q, %v", got, err)
	}
	if got, err := io.ReadAll(server); err != nil || len(got) > 0 {
		t.Errorf("the server reads %q, %v", got, err)
	}
}
