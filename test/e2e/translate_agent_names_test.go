package e2e

import (
	"fmt"
	"testing"
)

// Name rules of a container of the agent are in force after the agent was killed: what they have opened
// is reached, names that match open, and nothing else does.
func TestNameRulesOverAgents(t *testing.T) {
	t.Parallel()
	w := newIPv6World(t)
	echo := echoStreams(t, w.srv)
	addAddr(t, w.srv, thirdAddr6+"/64", "h")
	d := startDaemon(t, w.h)
	o := w.translatedBy(t, d, "--name-rule", fmt.Sprintf("%s:%d", serverName, echo))
	o.want("done", "server, third = name(%q), name(%q)", serverName, thirdName)
	for range 2 {
		o.want("?", "ask(stream((server, %d)))", echo)
		o.want("ENETUNREACH", "failed(stream, (third, %d))", echo)
		o.want("ENETUNREACH", "failed(ask, datagrams(), (server, %d))", echo+1)
		d.kill()
		d.start()
		o.want("?", "ask(stream((server, %d)))", echo)
		o.want("ENETUNREACH", "failed(stream, (third, %d))", echo)
		o.want("True", "server == name(%q)", serverName)
	}
	o.release()
	// The host whose name no rule matches is there.
	other := w.translatedBy(t, d)
	other.want("?", "ask(stream((name(%q), %d)))", thirdName, echo)
	other.release()
}
