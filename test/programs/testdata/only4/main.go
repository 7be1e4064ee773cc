// Command only4 is a static program that knows IPv4 only, unless it is told to know both families. It
// asks and answers over TCP and UDP.
//
//	only4 serve|serve-both PORT       tells each client which address the server sees
//	only4 call|call-both NAME:PORT    prints the addresses that it sees, and the answers
package main

import (
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"strings"
)

func main() {
	log.SetFlags(0)
	if len(os.Args) != 3 {
		log.Fatal("usage: only4 serve|serve-both PORT | only4 call|call-both NAME:PORT")
	}
	switch what, arg := os.Args[1], os.Args[2]; what {
	case "serve":
		serve("4", ":"+arg)
	case "serve-both":
		serve("", ":"+arg)
	case "call-both":
		call("tcp", arg)
		call("udp", arg)
	default:
		call("tcp4", arg)
		call("udp4", arg)
	}
}

func serve(family, addr string) {
	packets, err := net.ListenPacket("udp"+family, addr)
	if err != nil {
		log.Fatal(err)
	}
	l, err := net.Listen("tcp"+family, addr)
	if err != nil {
		log.Fatal(err)
	}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				log.Fatal(err)
			}
			fmt.Fprint(conn, host(conn.RemoteAddr()), " asks ", host(conn.LocalAddr()))
			conn.Close()
		}
	}()
	fmt.Println("ready")
	buf := make([]byte, 100)
	for {
		_, from, err := packets.ReadFrom(buf)
		if err == nil {
			_, err = packets.WriteTo([]byte(host(from)+" asks"), from)
		}
		if err != nil {
			log.Fatal(err)
		}
	}
}

func call(network, addr string) {
	conn, err := net.Dial(network, addr)
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	buf := make([]byte, 100)
	n := 0
	if network[:3] == "tcp" {
		n, err = io.ReadFull(conn, buf)
		if err == io.ErrUnexpectedEOF {
			err = nil
		}
	} else if _, err = conn.Write([]byte("?")); err == nil {
		n, err = conn.Read(buf)
	}
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s from %s to %s: %s\n", network, host(conn.LocalAddr()), host(conn.RemoteAddr()), buf[:n])
}

// host is an address without its port.
func host(a net.Addr) string {
	at := a.String()
	return strings.Trim(at[:strings.LastIndexByte(at, ':')], "[]")
}
