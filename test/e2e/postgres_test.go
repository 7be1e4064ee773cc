package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

const (
	postgresPort = 5432
	// nobody is who runs servers that root may not: user and group, as
	// everywhere on Linux.
	nobody = 65534
)

// postgresPath is a program of the server's, which Debian keeps out of PATH, in
// one folder for each version.
func postgresPath(name string) string {
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/" + name)
	if len(found) == 0 {
		return name
	}
	slices.Sort(found)
	return found[len(found)-1]
}

// initdb makes the files of a database, once.
var initdb = sync.OnceValues(func() (string, error) {
	dir := filepath.Join(tmpDir, "postgres")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", err
	}
	if err := os.Chown(dir, nobody, nobody); err != nil {
		return "", err
	}
	c := exec.Command(postgresPath("initdb"), "-D", dir, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync")
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	c.Dir = dir
	if out, err := c.CombinedOutput(); err != nil {
		return "", fmt.Errorf("initdb: %w\n%s", err, out)
	}
	hba, err := os.OpenFile(filepath.Join(dir, "pg_hba.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return "", err
	}
	defer hba.Close()
	_, err = hba.WriteString("host all all all trust\n")
	return dir, err
})

// postgresServer is the command line of a server with a new database.
func postgresServer(t *testing.T) []string {
	t.Helper()
	program := testkit.Program(t, postgresPath("postgres"))
	template, err := initdb()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(openDir(t), "data")
	if out, err := exec.Command("cp", "-a", template, dir).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return []string{
		program, "-D", dir, "-h", "*", "-p", fmt.Sprint(postgresPort), "-k", "",
		"-c", "log_connections=on", "-c", "fsync=off", "-c", "shared_buffers=16MB",
	}
}

// pgbench are runs of it: one prepares the tables, one keeps its connections
// and one makes a connection for each transaction.
var pgbench = [][]string{
	{"-i", "-q"},
	{"-c", "4", "-j", "2", "-t", "50"},
	{"-c", "4", "-j", "2", "-t", "10", "--connect"},
	{"-c", "2", "-t", "50", "--select-only", "--protocol", "prepared"},
}

var pgbenchProcessed = regexp.MustCompile(`number of transactions actually processed: (\d+)/(\d+)\nnumber of failed transactions: 0 \(0\.000%\)`)

// checkPgbench drives a server with pgbench, which run starts.
func checkPgbench(t *testing.T, addr string, run func(line ...string) string) {
	t.Helper()
	for _, args := range pgbench {
		line := append([]string{postgresPath("pgbench"), "-h", addr, "-p", fmt.Sprint(postgresPort), "-U", "postgres"}, args...)
		out := run(append(line, "postgres")...)
		if args[0] == "-i" {
			continue
		}
		found := pgbenchProcessed.FindStringSubmatch(out)
		if found == nil || found[1] != found[2] {
			t.Errorf("%s printed:\n%s", strings.Join(line, " "), out)
		}
	}
}

// psql is a query of who the server thinks that its client is, and of a
// megabyte of data.
func psql(addr string) []string {
	const query = `select host(inet_client_addr()) || ' ' || host(inet_server_addr()) || ' ' || repeat('tsugiki', 150000)`
	return []string{"psql", "-X", "-A", "-t", "-h", addr, "-p", fmt.Sprint(postgresPort), "-U", "postgres", "-c", query, "postgres"}
}

// checkPsql checks what psql printed to a client at an address.
func checkPsql(t *testing.T, answer, client, server string) {
	t.Helper()
	want := fmt.Sprintf("%s %s %s\n", client, server, strings.Repeat("tsugiki", 150000))
	if answer != want {
		t.Errorf("psql printed %d bytes, want %d: %.50q, want %.50q", len(answer), len(want), answer, want)
	}
}

func TestPostgres(t *testing.T) {
	t.Parallel()
	testkit.Program(t, "psql")
	eachMode(t, both, func(t *testing.T, w *world, v variant) {
		t.Run("server", func(t *testing.T) {
			line := slices.Concat([]string{"--user", "nobody"}, ingress(postgresPort), []string{"--"}, postgresServer(t))
			s := serve(t, v.run(t, w, line...), port{w.h, "tcp", postgresPort})
			waitOutput(t, s, "ready to accept connections") // it listens before that
			query := psql(hostAddr4)
			checkPsql(t, succeed(t, command(t, w.srv, query[0], query[1:]...)), remoteAddr4, hostAddr4)
			checkPgbench(t, hostAddr4, func(line ...string) string {
				return succeed(t, command(t, w.srv, line[0], line[1:]...))
			})
			checkPostgresLog(t, s, remoteAddr4)
		})
		t.Run("client", func(t *testing.T) {
			line := postgresServer(t)
			c := command(t, w.srv, line[0], line[1:]...)
			c.SysProcAttr.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
			s := serve(t, c, port{w.srv, "tcp", postgresPort})
			waitOutput(t, s, "ready to accept connections")
			checkPsql(t, v.client(t, w, psql(remoteAddr4)...), sourceAddr4, remoteAddr4)
			checkPgbench(t, remoteAddr4, func(line ...string) string { return v.client(t, w, line...) })
			checkPostgresLog(t, s, sourceAddr4)
		})
	})
}

var postgresClient = regexp.MustCompile(`connection received: host=(\S+)`)

// checkPostgresLog checks whom a server has had connections from, and that it
// found nothing wrong with them.
func checkPostgresLog(t *testing.T, s *server, client string) {
	t.Helper()
	log := s.printed(t)
	var seen []string
	for _, found := range postgresClient.FindAllStringSubmatch(log, -1) {
		seen = append(seen, found[1])
	}
	checkAllFrom(t, seen, client)
	if regexp.MustCompile(`(ERROR|FATAL|PANIC|WARNING):`).MatchString(log) {
		t.Errorf("the server logged:\n%s", log)
	}
}
