// Command serve answers every request, over HTTP or in a UDP datagram, with
// the address that it came from. It runs until it is killed.
package main

import (
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"strings"
)

func main() {
	log.SetFlags(0)
	if len(os.Args) < 2 {
		log.Fatal("usage: serve tcp|tcp4|tcp6|udp|udp4|udp6://ADDR:PORT...")
	}
	for _, arg := range os.Args[1:] {
		network, addr, _ := strings.Cut(arg, "://")
		if strings.HasPrefix(network, "udp") {
			conn, err := net.ListenPacket(network, addr)
			if err != nil {
				log.Fatal(err)
			}
			go answer(conn)
			continue
		}
		l, err := net.Listen(network, addr)
		if err != nil {
			log.Fatal(err)
		}
		go func() { log.Fatal(http.Serve(l, http.HandlerFunc(whoami))) }()
	}
	select {}
}

func whoami(w http.ResponseWriter, r *http.Request) {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		host = r.RemoteAddr
	}
	fmt.Fprintln(w, host)
}

func answer(conn net.PacketConn) {
	buf := make([]byte, 2048)
	for {
		_, from, err := conn.ReadFrom(buf)
		if err != nil {
			log.Fatal(err)
		}
		host, _, _ := net.SplitHostPort(from.String())
		if _, err := conn.WriteTo([]byte(host+"\n"), from); err != nil {
			log.Fatal(err)
		}
	}
}
