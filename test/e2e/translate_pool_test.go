package e2e

import (
	"fmt"
	"strings"
	"testing"
)

// pooledPrint is what testdata/pooled.py prints. The sockets of the library are translated ones before
// they connect, which only system calls past the library and names of addresses that are IPv4 ones
// change.
const pooledPrint = `new ('0.0.0.0', 0) True
translated %[2]s 0 %[2]s
names 192.0.0.2 True
own True peer True
system calls True True
bad pointers EFAULT EFAULT EFAULT EFAULT
answer %[1]s
refused ECONNREFUSED ECONNREFUSED ENETUNREACH 0 EISCONN True
nobody ENETUNREACH ENETUNREACH 0
begun EINPROGRESS
failed ECONNREFUSED
peer ENOTCONN
begun EINPROGRESS
ready 0 0 EISCONN True
child 0 True
parent %[3]s True
options 33 16 33 16
system call 0 EISCONN
system call 0 EISCONN
system call ECONNREFUSED 0
system call ENETUNREACH 0
system call ECONNREFUSED 0 True
loopback 0 127.0.0.1 True
accepted True True
loopback ECONNREFUSED 0 True
loopback ECONNREFUSED 0 True
unbound 0.0.0.0 0 True
accept True -1 EAGAIN
bound 0.0.0.0 0 192.0.0.2 True
bound 127.0.0.1 0
resolver 0 ('192.0.2.53', 53)
resolver True True
`

// A program that makes many sockets gets translated ones in advance from the preloaded library. They
// do all that its other sockets do, also where the library does not see the calls.
func TestTranslatedPool(t *testing.T) {
	t.Parallel()
	w := newIPv6World(t)
	o := observe(t, w.srv)
	watch := watchIPv4(t, w.h)
	for _, tt := range []struct{ mode, v6only, pooled, shared string }{
		{"auto", "0", "True", "EISCONN"},
		{"auto", "1", "True", "EISCONN"}, // no reason for a library's socket
		{"seccomp", "0", "False", "0"},   // the engine replaces the child's socket alone
	} {
		t.Run(tt.mode+"/"+tt.v6only, func(t *testing.T) {
			if err := w.h.SetSysctl("net.ipv6.bindv6only", tt.v6only); err != nil {
				t.Fatal(err)
			}
			got := succeed(t, w.translated(t, "--mode", tt.mode, "--ipv6", sourceAddr6, "--",
				python(t), "testdata/pooled.py", serverName, fmt.Sprint(observerPort)))
			want := fmt.Sprintf(pooledPrint, sourceAddr6, tt.pooled, tt.shared)
			if difference := firstDifference(want, got); difference != "" {
				t.Errorf("%s\nit prints\n%s", difference, got)
			}
			if from := o.take(); len(from) != 1 || !strings.Contains(from[0], sourceAddr6) {
				t.Errorf("the server is asked by %v", from)
			}
		})
	}
	watch.nothing(t)
}
