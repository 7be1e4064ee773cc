// Command crowd makes many connections, some at once, and compares the names that both ends have.
//
//	crowd serve ADDR...    tells each client the names that the server sees
//	crowd call N ADDR...   makes N connections to each address and prints the names seen, without
//	                       the clients' ports, and how often
package main

import (
	"fmt"
	"io"
	"log"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"sync"
)

// atOnce is how many connections to one address there are at most.
const atOnce = 16

func main() {
	log.SetFlags(0)
	switch args := os.Args[1:]; {
	case len(args) > 1 && args[0] == "serve":
		serve(args[1:])
	case len(args) > 2 && args[0] == "call":
		n, err := strconv.Atoi(args[1])
		if err != nil {
			log.Fatal(err)
		}
		for _, addr := range args[2:] {
			call(n, addr)
		}
	default:
		log.Fatal("usage: crowd serve ADDR... | crowd call N ADDR...")
	}
}

func serve(addrs []string) {
	for _, addr := range addrs {
		l, err := net.Listen("tcp", addr)
		if err != nil {
			log.Fatal(err)
		}
		go func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					log.Fatal(err)
				}
				go func() {
					defer conn.Close()
					fmt.Fprint(conn, conn.RemoteAddr(), " ", conn.LocalAddr())
				}()
			}
		}()
	}
	fmt.Println("ready")
	select {}
}

func call(n int, addr string) {
	seen := map[string]int{}
	var mu sync.Mutex // guards seen
	var wg sync.WaitGroup
	for range atOnce {
		wg.Go(func() {
			for {
				mu.Lock()
				n--
				done := n < 0
				mu.Unlock()
				if done {
					return
				}
				names := connect(addr)
				mu.Lock()
				seen[names]++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	var lines []string
	for names, times := range seen {
		lines = append(lines, fmt.Sprintf("%d connections to %s: %s", times, addr, names))
	}
	slices.Sort(lines)
	for _, line := range lines {
		fmt.Println(line)
	}
}

// connect makes a connection and says which names its ends have, or what failed.
func connect(addr string) string {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return err.Error()
	}
	defer conn.Close()
	answer, err := io.ReadAll(conn)
	if err != nil {
		return err.Error()
	}
	own := netip.MustParseAddrPort(conn.LocalAddr().String())
	var client netip.AddrPort
	var server string
	var text string
	if _, err := fmt.Sscan(string(answer), &text, &server); err != nil {
		return fmt.Sprintf("the answer is %q", answer)
	}
	if client, err = netip.ParseAddrPort(text); err != nil {
		return err.Error()
	}
	names := fmt.Sprintf("client %s %s, server %s %s", own.Addr(), conn.RemoteAddr(), client.Addr(), server)
	if client.Port() != own.Port() {
		names += ", other ports"
	}
	return names
}
