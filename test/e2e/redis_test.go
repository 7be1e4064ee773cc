package e2e

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

const redisPort = "6379"

func redisServer(t *testing.T, bind string) []string {
	t.Helper()
	return []string{
		"redis-server", "--port", redisPort, "--bind", bind, "--dir", t.TempDir(),
		"--save", "''", "--appendonly", "no", "--protected-mode", "no",
	}
}

func redisBenchmark(addr, port string) []string {
	return []string{"redis-benchmark", "-h", addr, "-p", port, "-n", "2000", "-c", "10", "-t", "set,get", "--csv"}
}

var redisRates = regexp.MustCompile(`(?m)^"(SET|GET)","[1-9][0-9.]*",`)

func checkRedisBenchmark(t *testing.T, report string) {
	t.Helper()
	if len(redisRates.FindAllString(report, -1)) != 2 || strings.Contains(report, "rror") {
		t.Errorf("redis-benchmark printed:\n%s", report)
	}
}

// redisTalk stores a value, reads it, and lists the clients.
const redisTalk = "set key value\nget key\nclient list\n"

// checkRedisTalk checks the answers to redisTalk, and whom the server sees.
func checkRedisTalk(t *testing.T, answers, source string) {
	t.Helper()
	if !strings.HasPrefix(answers, "OK\nvalue\n") || !strings.Contains(answers, " addr="+source+":") {
		t.Errorf("redis-cli printed %q, want a client at %s", answers, source)
	}
}

func TestRedis(t *testing.T) {
	t.Parallel()
	testkit.Program(t, "redis-server")
	testkit.Program(t, "redis-benchmark")
	const server, client, inside = 0, 1, 2
	picked := cover(serving, 3, func(v variant, part int) bool { return part != client || v.egress != nil })
	each(t, serving, func(t *testing.T, w *world, v variant) {
		if picked(v, server) {
			t.Run("server", func(t *testing.T) { testRedisServer(t, w, v) })
		}
		if picked(v, client) {
			t.Run("client", func(t *testing.T) { testRedisClient(t, w, v) })
		}
		if picked(v, inside) {
			t.Run("inside", func(t *testing.T) { testRedisInside(t, w, v) })
		}
	})
}

// testRedisServer has clients on the remote.
func testRedisServer(t *testing.T, w *world, v variant) {
	flags := []string{"--endpoint", "in type ipv4 addr 198.51.100.1 port 16379", "-i", "0.0.0.0:" + redisPort + "=in", "--"}
	serve(t, v.run(t, w, append(flags, redisServer(t, "0.0.0.0")...)...), port{w.h, "tcp4", 16379})
	talk := command(t, w.srv, "redis-cli", "-h", hostAddr4, "-p", "16379")
	talk.Stdin = strings.NewReader(redisTalk)
	checkRedisTalk(t, succeed(t, talk), remoteAddr4)
	bench := redisBenchmark(hostAddr4, "16379")
	checkRedisBenchmark(t, succeed(t, command(t, w.srv, bench[0], bench[1:]...)))
}

// testRedisClient has the server on the remote.
func testRedisClient(t *testing.T, w *world, v variant) {
	line := redisServer(t, "0.0.0.0")
	serve(t, command(t, w.srv, line[0], line[1:]...), port{w.srv, "tcp4", 6379})
	talk := v.run(t, w, "--", "redis-cli", "-h", remoteAddr4, "-p", redisPort)
	talk.Stdin = strings.NewReader(redisTalk)
	checkRedisTalk(t, succeed(t, talk), sourceAddr4)
	bench := redisBenchmark(remoteAddr4, redisPort)
	checkRedisBenchmark(t, succeed(t, v.run(t, w, append([]string{"--"}, bench...)...)))
}

// testRedisInside has server and clients in the container.
func testRedisInside(t *testing.T, w *world, v variant) {
	// "127.0.0.1 -::1" is what redis comes with.
	script := fmt.Sprintf(`%s >&2 &
until redis-cli ping >/dev/null 2>&1; do sleep 0.02; done
printf '%s' | redis-cli && %s`,
		strings.Join(redisServer(t, "'127.0.0.1 -::1'"), " "),
		strings.ReplaceAll(redisTalk, "\n", `\n`), strings.Join(redisBenchmark("127.0.0.1", redisPort), " "))
	out := succeed(t, v.run(t, w, "--", "sh", "-c", script))
	checkRedisTalk(t, out, "127.0.0.1")
	checkRedisBenchmark(t, out)
}
