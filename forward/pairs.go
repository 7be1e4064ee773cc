package forward

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/tsugiki/tsugiki/bpf"
)

// Verdict says how packets go between two pods.
type Verdict string

// Verdicts.
const (
	// Direct packets skip the bridge or the switch, and its rules: for pairs of which every
	// packet is allowed, in both directions.
	Direct Verdict = "direct"
	// Slow packets go through the bridge or the switch.
	Slow Verdict = "slow"
	// Default removes the verdict: the pair is direct if both pods have AllPairs.
	Default Verdict = "default"
)

// Pair is the verdict about two pods, in both directions.
type Pair struct {
	A, B    int // devices of pods, A < B
	Verdict Verdict
}

func pairKey(a, b int) bpf.ForwardPair {
	return bpf.ForwardPair{Low: uint32(min(a, b)), High: uint32(max(a, b))}
}

// SetPair decides about two pods of the table. A policy that comes to forbid anything between
// them has to be in force after this: SetPair Slow first, then the rule of the switch. A policy
// that allows everything has to be in force before SetPair Direct. Flows between them that
// began through the switch stay there. An error is ErrUnknown, ErrFull, or the kernel's: two pods
// that have AllPairs stay direct when there is no room for Slow.
func (t *Table) SetPair(a, b int, v Verdict) error {
	return t.locked(func() error { return t.setPair(a, b, v) })
}

func (t *Table) setPair(a, b int, v Verdict) error {
	for _, device := range []int{a, b} {
		if _, err := t.Pod(device); err != nil {
			return fmt.Errorf("link %d: %w", device, err)
		}
	}
	if a == b {
		return errors.New("a pair is of two pods")
	}
	var value bpf.ForwardVerdict
	switch v {
	case Default:
		return ignore(t.maps.VerdictByPair.Delete(pairKey(a, b)), ebpf.ErrKeyNotExist)
	case Direct:
		value = bpf.ForwardVerdictPAIR_DIRECT
	case Slow:
		value = bpf.ForwardVerdictPAIR_SLOW
	default:
		return fmt.Errorf("unknown verdict %q; write direct, slow or default", v)
	}
	if err := t.maps.VerdictByPair.Put(pairKey(a, b), value); err != nil {
		return fmt.Errorf("enter pair of links %d and %d: %w", a, b, full(err))
	}
	return nil
}

// Pairs lists the pairs that have a verdict, in no order.
func (t *Table) Pairs() ([]Pair, error) {
	var list []Pair
	var key bpf.ForwardPair
	var value bpf.ForwardVerdict
	rows := t.maps.VerdictByPair.Iterate()
	for rows.Next(&key, &value) {
		p := Pair{A: int(key.Low), B: int(key.High), Verdict: Slow}
		if value == bpf.ForwardVerdictPAIR_DIRECT {
			p.Verdict = Direct
		}
		list = append(list, p)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("list pairs: %w", err)
	}
	return list, nil
}

// removePairs removes the verdicts about a pod.
func (t *Table) removePairs(device uint32) error {
	pairs, err := t.Pairs()
	for _, p := range pairs {
		if uint32(p.A) == device || uint32(p.B) == device {
			err = errors.Join(err, ignore(t.maps.VerdictByPair.Delete(pairKey(p.A, p.B)), ebpf.ErrKeyNotExist))
		}
	}
	return err
}
