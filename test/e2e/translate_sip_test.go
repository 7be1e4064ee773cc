package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const sipPort = 5060

// sippLine is a call of sipp(1) by TCP. Its messages are written to a file.
func sippLine(scenario, at, messages string, more ...string) []string {
	return append([]string{
		"sipp", "-sn", scenario, "-t", "t1", "-i", at, "-p", fmt.Sprint(sipPort), "-m", "1", "-nostdin",
		"-trace_msg", "-message_file", messages, "-timeout", "50", "-timeout_error",
	}, more...)
}

// A caller that knows IPv4 only calls a host that has only an IPv6 address, by SIP over TCP. Each of them
// sees addresses of its own family.
func TestTranslatedSIPCaller(t *testing.T) {
	t.Parallel()
	w := newIPv6World(t)
	dir := t.TempDir()
	callee, caller := filepath.Join(dir, "callee"), filepath.Join(dir, "caller")
	line := sippLine("uas", remoteAddr6, callee)
	serve(t, command(t, w.srv, line[0], line[1:]...), port{w.srv, "tcp6", sipPort})
	script := fmt.Sprintf(`exec "$@" $(getent ahostsv4 %s | awk '{ print $1; exit }'):%d`, serverName, sipPort)
	succeed(t, w.translated(t, append([]string{"--ipv6", sourceAddr6, "--sip", fmt.Sprint(sipPort), "--", "sh", "-c", script, "sh"},
		sippLine("uac", ownAddr4, caller)...)...))
	checkMessages(t, callee, remoteAddr6, "INVITE sip:service@["+remoteAddr6+"]:5060", "Via: SIP/2.0/TCP ["+sourceAddr6+"]:", "c=IN IP6 "+sourceAddr6, "Contact: sip:sipp@["+sourceAddr6+"]:")
	checkMessages(t, caller, ownAddr4, "SIP/2.0 200 OK", "Via: SIP/2.0/TCP "+ownAddr4+":", "c=IN IP4 "+virtualAddr4, "Contact: <sip:"+virtualAddr4+":5060")
}

// A callee that knows IPv4 only is called by a host that has only an IPv6 address.
func TestTranslatedSIPCallee(t *testing.T) {
	t.Parallel()
	w := newIPv6World(t)
	dir := t.TempDir()
	callee, caller := filepath.Join(dir, "callee"), filepath.Join(dir, "caller")
	serve(t, w.translated(t, append([]string{"-i", fmt.Sprintf("0.0.0.0:%d=[%s]:%d", sipPort, sourceAddr6, sipPort), "--sip", fmt.Sprint(sipPort), "--"},
		sippLine("uas", ownAddr4, callee)...)...), port{w.h, "tcp6", sipPort})
	line := sippLine("uac", remoteAddr6, caller, fmt.Sprintf("[%s]:%d", sourceAddr6, sipPort))
	succeed(t, command(t, w.srv, line[0], line[1:]...))
	checkMessages(t, callee, ownAddr4, "INVITE sip:service@"+ownAddr4+":5060", "Via: SIP/2.0/TCP "+virtualAddr4+":", "c=IN IP4 "+virtualAddr4)
	checkMessages(t, caller, remoteAddr6, "SIP/2.0 200 OK", "Via: SIP/2.0/TCP ["+remoteAddr6+"]:", "c=IN IP6 "+sourceAddr6, "Contact: <sip:["+sourceAddr6+"]:5060")
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
