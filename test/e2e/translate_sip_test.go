package e2e

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

const sipPort = 5060

// sippTransports are the names of sipp's transports, by those of Via.
var sippTransports = map[string]string{"TCP": "t1", "UDP": "u1"}

// sippLine is a call of sipp(1). Its messages are written to a file.
func sippLine(transport, scenario, at, messages string, more ...string) []string {
	return append([]string{
		"sipp", "-sn", scenario, "-t", sippTransports[transport], "-i", at, "-mi", at, "-p", fmt.Sprint(sipPort), "-m", "1", "-nostdin",
		"-trace_msg", "-message_file", messages, "-timeout", "50", "-timeout_error",
	}, more...)
}

// A caller that knows IPv4 only calls a host that has only an IPv6 address. Each of them sees addresses of
// its own family.
func TestTranslatedSIPCaller(t *testing.T) {
	t.Parallel()
	w := newIPv6World(t)
	for transport := range sippTransports {
		t.Run(transport, func(t *testing.T) {
			dir := t.TempDir()
			callee, caller := filepath.Join(dir, "callee"), filepath.Join(dir, "caller")
			line := sippLine(transport, "uas", remoteAddr6, callee)
			serve(t, command(t, w.srv, line[0], line[1:]...), port{w.srv, strings.ToLower(transport) + "6", sipPort})
			script := fmt.Sprintf(`exec "$@" $(getent ahostsv4 %s | awk '{ print $1; exit }'):%d`, serverName, sipPort)
			succeed(t, w.translated(t, append([]string{"--ipv6", sourceAddr6, "--sip", fmt.Sprint(sipPort), "--", "sh", "-c", script, "sh"},
				sippLine(transport, "uac", ownAddr4, caller)...)...))
			via := "Via: SIP/2.0/" + transport + " "
			checkMessages(t, callee, remoteAddr6, "INVITE sip:service@["+remoteAddr6+"]:5060", via+"["+sourceAddr6+"]:", "c=IN IP6 "+sourceAddr6, "Contact: sip:sipp@["+sourceAddr6+"]:")
			checkMessages(t, caller, ownAddr4, "SIP/2.0 200 OK", via+ownAddr4+":", "c=IN IP4 "+virtualAddr4, "Contact: <sip:"+virtualAddr4+":5060")
		})
	}
}

// A callee that knows IPv4 only is called by a host that has only an IPv6 address.
func TestTranslatedSIPCallee(t *testing.T) {
	t.Parallel()
	w := newIPv6World(t)
	for transport := range sippTransports {
		t.Run(transport, func(t *testing.T) {
			dir := t.TempDir()
			callee, caller := filepath.Join(dir, "callee"), filepath.Join(dir, "caller")
			serve(t, w.translated(t, append([]string{"-i", fmt.Sprintf("0.0.0.0:%d=[%s]:%d", sipPort, sourceAddr6, sipPort), "--sip", fmt.Sprint(sipPort), "--"},
				sippLine(transport, "uas", ownAddr4, callee)...)...), port{w.h, strings.ToLower(transport) + "6", sipPort})
			line := sippLine(transport, "uac", remoteAddr6, caller, fmt.Sprintf("[%s]:%d", sourceAddr6, sipPort))
			succeed(t, command(t, w.srv, line[0], line[1:]...))
			via := "Via: SIP/2.0/" + transport + " "
			checkMessages(t, callee, ownAddr4, "INVITE sip:service@"+ownAddr4+":5060", via+"198.1", "c=IN IP4 198.1")
			checkMessages(t, caller, remoteAddr6, "SIP/2.0 200 OK", via+"["+remoteAddr6+"]:", "c=IN IP6 "+sourceAddr6, "Contact: <sip:["+sourceAddr6+"]:5060")
		})
	}
}

// checkMessages fails if a file of messages lacks a text, or has an address of another family than the
// address of its side. Call-ID is only a name.
func checkMessages(t *testing.T, path, own string, want ...string) {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	text := string(content)
	for _, w := range want {
		if !strings.Contains(text, w) {
			t.Errorf("%s has no %q:\n%s", path, w, text)
		}
	}
	others := []string{ownAddr4, virtualAddr4, "IN IP4"}
	if own == ownAddr4 {
		others = []string{sourceAddr6, remoteAddr6, "IN IP6"}
	}
	for line := range strings.Lines(text) {
		for _, other := range others {
			if strings.Contains(line, other) && !strings.HasPrefix(line, "Call-ID:") {
				t.Errorf("%s has %q", path, line)
			}
		}
	}
}

// phone is a line of testdata/sipphone.py.
func phone(t *testing.T, at string, steps ...string) []string {
	t.Helper()
	return append([]string{python(t), "testdata/sipphone.py", at, fmt.Sprint(sipPort), fmt.Sprint(mediaPort)}, steps...)
}

const mediaPort = 7000

// Programs that know IPv4 only call, and are called, by SIP over UDP. Media goes to where the session
// descriptions say, in both directions, whoever begins. Each side sees addresses of its own family only.
func TestTranslatedSIPDatagrams(t *testing.T) {
	t.Parallel()
	w := newIPv6World(t)
	watch := watchIPv4(t, w.h)
	flags := []string{"--ipv6", sourceAddr6, "--sip", fmt.Sprint(sipPort)}
	published := append([]string{"-i", fmt.Sprintf("0.0.0.0:%d=[%s]:%d", sipPort, sourceAddr6, sipPort), "-e", "::/0=" + sourceAddr6}, flags[2:]...)
	for name, tt := range map[string]struct {
		flags          []string
		inside, remote []string
	}{
		"caller talks":   {flags, []string{"call " + serverName, "talk", "hang-up"}, []string{"answer", "listen", "ended"}},
		"caller listens": {flags, []string{"call " + serverName, "listen", "ended"}, []string{"answer", "talk", "hang-up"}},
		"callee listens": {published, []string{"answer", "listen", "ended"}, []string{"call " + sourceAddr6, "talk", "hang-up"}},
		"callee talks":   {published, []string{"answer", "talk", "hang-up"}, []string{"call " + sourceAddr6, "listen", "ended"}},
		"caller talks to sipp": {
			flags,
			[]string{"call " + serverName, "talk", "hang-up"},
			sippLine("UDP", "uas", remoteAddr6, filepath.Join(t.TempDir(), "messages"), "-rtp_echo", "-mp", "6000"),
		},
		"registered": {
			flags,
			[]string{"register " + serverName, "answer", "listen", "talk", "ended"},
			[]string{"registrar", "call contact", "talk", "listen", "hang-up"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			inTranslatingModes(t, func(t *testing.T, mode string) {
				line := tt.remote
				if line[0] != "sipp" {
					line = phone(t, remoteAddr6, line...)
				}
				remote := start(t, command(t, w.srv, line[0], line[1:]...))
				got := succeed(t, w.translated(t, slices.Concat([]string{"--mode", mode}, tt.flags, []string{"--"}, phone(t, ownAddr4, tt.inside...))...))
				remote.succeeds(t)
				if want := words(tt.inside); got != want {
					t.Errorf("it prints\n%s\nwant\n%s", got, want)
				}
			})
		})
	}
	watch.Nothing(t)
}

// words are the first words of steps, a line each.
func words(steps []string) (text string) {
	for _, s := range steps {
		word, _, _ := strings.Cut(s, " ")
		text += word + "\n"
	}
	return text
}

// sipp(1), which knows IPv4 only, is called, and sends the media back that it gets.
func TestTranslatedSIPEcho(t *testing.T) {
	t.Parallel()
	w := newIPv6World(t)
	callee := sippLine("UDP", "uas", ownAddr4, filepath.Join(t.TempDir(), "messages"), "-rtp_echo", "-mp", "6000")
	serve(t, w.translated(t, append([]string{"-i", fmt.Sprintf("0.0.0.0:%d=[%s]:%d", sipPort, sourceAddr6, sipPort), "--sip", fmt.Sprint(sipPort), "--"},
		callee...)...), port{w.h, "udp6", sipPort})
	line := phone(t, remoteAddr6, "call "+sourceAddr6, "talk", "hang-up")
	succeed(t, command(t, w.srv, line[0], line[1:]...))
}

// A SIP message over UDP that is too large is refused, and one that comes in fragments is lost; both are
// counted. One that is larger than the link's MTU leaves in fragments. The next agent goes on.
func TestTranslatedSIPLargeDatagrams(t *testing.T) {
	t.Parallel()
	w := newIPv6World(t)
	var remote *net.UDPConn
	err := w.srv.Do(func() (err error) {
		remote, err = net.ListenUDP("udp6", net.UDPAddrFromAddrPort(netip.MustParseAddrPort(addrPort(remoteAddr6, sipPort))))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer remote.Close()
	var peer *net.UDPAddr
	hears := func(size int) {
		t.Helper()
		buf := make([]byte, 65536)
		if err := remote.SetDeadline(time.Now().Add(testkit.Patience)); err != nil {
			t.Fatal(err)
		}
		n, from, err := remote.ReadFromUDP(buf)
		if err != nil {
			t.Fatal(err)
		}
		peer = from
		head, body, _ := strings.Cut(string(buf[:n]), "\r\n\r\n")
		if !strings.HasPrefix(head, "OPTIONS sip:["+remoteAddr6+"] SIP/2.0\r\nVia: SIP/2.0/UDP ["+sourceAddr6+"]:7000\r\n") || body != strings.Repeat("x", size) {
			t.Errorf("the remote hears %q, and %d bytes", head, len(body))
		}
	}
	d := startDaemon(t, w.h)
	o := w.translatedBy(t, d, "--sip", fmt.Sprint(sipPort))
	o.want("done", "s = datagrams(); to = (name(%q), %d)", serverName, sipPort)
	o.want("done", `say = lambda n: s.sendto(f"OPTIONS sip:{to[0]} SIP/2.0\r\nVia: SIP/2.0/UDP 192.0.0.2:7000\r\nFrom: a\r\nTo: b\r\nCall-ID: 1\r\nCSeq: 1 OPTIONS\r\n\r\n".encode() + b"x" * n, to) and None`)
	o.want("None", "say(9000)")
	o.want("SIP/2.0 513 Message Too Large", `s.recv(2000).decode().split("\r\n")[0]`)
	o.want("None", "say(3000)")
	hears(3000)
	for _, text := range []string{"SIP/2.0 200 " + strings.Repeat("x", 3000) + "\r\n\r\n", "SIP/2.0 200 sentinel\r\n\r\n"} {
		if _, err := remote.WriteToUDP([]byte(text), peer); err != nil {
			t.Fatal(err)
		}
	}
	o.want("SIP/2.0 200 sentinel", "s.recv(4000).decode().strip()")
	var shown []api.Translation
	if err := json.Unmarshal([]byte(succeed(t, command(t, w.h, tsugiki, "translate", "show", "-j", "--run-dir", d.run, o.name))), &shown); err != nil {
		t.Fatal(err)
	}
	want := api.Relays{SIP: api.RelayedProtocol{Rewritten: 1, Refused: 2}, Datagrams: 4}
	if got := shown[0].Counts.Relays; got != want {
		t.Errorf("counted is %+v, want %+v", got, want)
	}
	d.kill()
	d.start()
	o.want("None", "say(10)")
	hears(10)
	o.release()
}
