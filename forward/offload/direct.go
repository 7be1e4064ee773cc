package offload

import (
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"slices"

	"github.com/tsugiki/tsugiki/forward"
	"github.com/tsugiki/tsugiki/forward/offload/flows"
	"github.com/tsugiki/tsugiki/forward/offload/ports"
)

// Pods is the host's table: forward.Table.
type Pods interface {
	Pod(device int) (forward.Pod, error)
	Pairs() ([]forward.Pair, error)
	SetPair(a, b int, v forward.Verdict) error
	SetDirect(device int, on bool) error
}

// direct keeps the verdicts about pairs of pods what the policy says. It writes slow over direct, and
// direct where there is no verdict; of other verdicts it takes back its own alone. Those that it
// wrote before it was started anew are not its own: a pair may stay slow then.
//
// If the table has no room for a pair that has to be slow, one of the two pods is switched off: none
// of its packets go directly any more.
type direct struct {
	pods    Pods
	log     *slog.Logger
	policy  *flows.Policy // by which the pairs of known were decided; nil: some were not
	known   map[int]*known
	written map[pair]forward.Verdict
	loose   []change // what loosen writes
}

// known is a pod for which pairs were decided.
type known struct {
	forward.Pod
	addrs   []netip.Addr
	subject *flows.Subject // of the policy
	off     bool           // the table had no room for one of its pairs
}

type pair struct{ a, b int }

type change struct {
	pair
	verdict forward.Verdict
}

func newDirect(pods Pods, log *slog.Logger) *direct {
	return &direct{pods: pods, log: log, known: map[int]*known{}, written: map[pair]forward.Verdict{}}
}

// restrict makes pairs slow between which the policy forbids anything. It is called before flows
// change, and notes what loosen may write afterwards. Pods that were known before are decided about
// as well, if they are still in the host's table: their packets go directly also while the switch
// is away, or has no flows of theirs. After an error, or if loosen has not written all of it, the
// next restrict decides about all pairs.
func (d *direct) restrict(list []*ports.Port, policy *flows.Policy) error {
	all := d.policy == nil || !d.policy.Equal(policy) || len(d.loose) > 0
	d.policy, d.loose = nil, nil
	now, fresh, err := d.look(list)
	if err != nil {
		return err
	}
	if all {
		fresh = slices.Collect(maps.Keys(now))
	}
	for p := range d.written {
		if now[p.a] == nil || now[p.b] == nil {
			delete(d.written, p) // the table forgets a pod's pairs
		}
	}
	d.known = now
	if len(fresh) > 0 {
		has, err := d.verdicts()
		if err != nil {
			return err
		}
		if err := d.decide(policy, fresh, has); err != nil {
			return err
		}
	}
	d.policy = policy
	return nil
}

// look finds the pods of ports, and those known before, in the host's table. Fresh ones were not known.
func (d *direct) look(list []*ports.Port) (now map[int]*known, fresh []int, err error) {
	now = map[int]*known{}
	for _, p := range list {
		k := d.known[p.Device]
		if k == nil || k.MAC != p.MAC {
			row, err := d.row(p.Device, p.MAC)
			if err != nil {
				return nil, nil, err
			}
			if row == nil {
				continue
			}
			k = &known{Pod: *row, addrs: p.Addrs}
			fresh = append(fresh, p.Device)
		}
		now[p.Device] = k
	}
	for device, k := range d.known {
		if now[device] != nil {
			continue
		}
		row, err := d.row(device, k.MAC)
		if err != nil {
			return nil, nil, err
		}
		if row != nil {
			now[device] = k
		}
	}
	return now, fresh, nil
}

// row is the table's of a pod; nil if the pod is gone.
func (d *direct) row(device int, mac [6]byte) (*forward.Pod, error) {
	row, err := d.pods.Pod(device)
	if errors.Is(err, forward.ErrUnknown) || err == nil && row.MAC != mac {
		return nil, nil
	}
	return &row, err
}

func (d *direct) verdicts() (map[pair]forward.Verdict, error) {
	list, err := d.pods.Pairs()
	has := map[pair]forward.Verdict{}
	for _, p := range list {
		has[pair{p.A, p.B}] = p.Verdict
	}
	return has, err
}

// decide decides about all pairs of which one pod is among these.
func (d *direct) decide(policy *flows.Policy, fresh []int, has map[pair]forward.Verdict) error {
	judge := flows.NewJudge(policy)
	for _, x := range fresh {
		d.known[x].subject = judge.Subject(d.known[x].addrs)
	}
	done := map[int]bool{}
	for _, x := range fresh {
		done[x] = true
		for y, other := range d.known {
			if done[y] && y != x || x == y {
				continue
			}
			p, k := pair{min(x, y), max(x, y)}, d.known[x]
			if k.off || other.off {
				continue
			}
			err := d.one(p, judge.Free(k.subject, other.subject), k.AllPairs && other.AllPairs, has[p])
			if errors.Is(err, forward.ErrFull) {
				err = d.switchOff(x)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// one decides about a pair. usual tells whether it is direct without a verdict.
func (d *direct) one(p pair, free, usual bool, has forward.Verdict) error {
	switch {
	case !free && (has == forward.Direct || usual && has != forward.Slow):
		if err := d.pods.SetPair(p.a, p.b, forward.Slow); err != nil {
			return gone(err)
		}
		d.written[p] = forward.Slow
	case free && has == forward.Slow && d.written[p] == forward.Slow:
		verdict := forward.Default
		if !usual {
			verdict = forward.Direct
		}
		d.loose = append(d.loose, change{p, verdict})
	case free && !usual && has == "":
		d.loose = append(d.loose, change{p, forward.Direct})
	}
	return nil
}

// loosen writes verdicts of pairs that may be direct now.
func (d *direct) loosen() error {
	for _, c := range d.loose {
		err := d.pods.SetPair(c.a, c.b, c.verdict)
		if errors.Is(err, forward.ErrFull) {
			break // pairs without a verdict are slow
		}
		if err := gone(err); err != nil {
			return err
		}
		d.written[c.pair] = c.verdict
	}
	d.loose = nil
	return nil
}

// switchOff has all of a pod's packets go through the switch until the pod is removed.
func (d *direct) switchOff(device int) error {
	d.log.Warn("a pod has no direct packets, because the host's table has no room for verdicts about its pairs", "link", device)
	d.known[device].off = true
	return gone(d.pods.SetDirect(device, false))
}

// switchOn lets a new pod's packets go directly, if its network wants that.
func (d *direct) switchOn(p *ports.Port) error {
	if k := d.known[p.Device]; !p.Direct || k == nil || k.off {
		return nil
	}
	return gone(d.pods.SetDirect(p.Device, true))
}

// gone takes a pod that was removed meanwhile to be no error.
func gone(err error) error {
	if errors.Is(err, forward.ErrUnknown) {
		return nil
	}
	return err
}
