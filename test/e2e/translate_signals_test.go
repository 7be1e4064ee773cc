package e2e

import (
	"fmt"
	"testing"
)

// pythonSignals waits in accept(2) while signals come. A second thread ends the program once it has heard
// of three: a handler runs only if the call is interrupted.
const pythonSignals = `
import errno, os, signal, socket, sys, threading
s = socket.socket()
s.bind(("0.0.0.0", 8000))
s.listen()
r, w = os.pipe()
os.set_blocking(w, False)
def hear():
    for _ in range(3):
        os.read(r, 1)
    print("three signals", flush=True)
    os._exit(0)
signal.signal(signal.SIGALRM, lambda *_: None)
signal.siginterrupt(signal.SIGALRM, sys.argv[1] == "EINTR")
signal.set_wakeup_fd(w)
threading.Thread(target=hear).start()
signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
try:
    s.accept()
except OSError as e:
    print("accept fails:", errno.errorcode.get(e.errno, e.errno), flush=True)
`

// A server that waits in accept(2) gets signals, whether their handler lets the call be restarted or not.
func TestTranslatedServersGetSignals(t *testing.T) {
	t.Parallel()
	w := newIPv6World(t)
	for _, how := range []string{"restarted", "EINTR"} {
		t.Run(how, func(t *testing.T) {
			inTranslatingModes(t, func(t *testing.T, mode string) {
				c := w.translated(t, "--mode", mode, "-i", fmt.Sprintf("0.0.0.0:8000=[%s]:8000", sourceAddr6), "--", python(t), "-c", pythonSignals, how)
				if got := succeed(t, c); got != "three signals\n" {
					t.Errorf("it prints %q", got)
				}
			})
		})
	}
}
