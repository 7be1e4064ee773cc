package daemon

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tsugiki/tsugiki/api"
)

var (
	descOwn       = containerDesc("charge_own_seconds_total", "CPU time that a container itself has spent.")
	descBorrowed  = containerDesc("charge_borrowed_seconds_total", "CPU time that others have spent for a container.", "source", "by")
	descDebt      = containerDesc("charge_debt_seconds", "CPU time that is still to be taken from a container's quota.")
	descCarried   = containerDesc("charge_carried_seconds", "Of the debt, what is taken slowly.")
	descForgiven  = containerDesc("charge_forgiven_seconds_total", "CPU time that was too much to be taken.")
	descQuota     = containerDesc("charge_quota_ratio", "CPUs that a container may use: given to it, and left to it now.", "of")
	descHeld      = containerDesc("charge_held_seconds_total", "Time that a container was frozen for its debts.")
	descHolds     = containerDesc("charge_holds_total", "Times that a container was frozen for its debts.")
	descTooLong   = containerDesc("charge_holds_too_long_total", "Of these, those that took longer than they may.")
	descPeriods   = containerDesc("charge_periods_total", "Periods of the container's quota (nr_periods).")
	descThrottles = containerDesc("charge_throttled_periods_total", "Of these, those in which the kernel throttled it (nr_throttled).")
	descThrottled = containerDesc("charge_throttled_seconds_total", "Time that the kernel throttled it.")
	descMissed    = prometheus.NewDesc("tsugiki_charge_missed_containers", "Containers that were found and cannot be charged. Each scan tries again.", nil, nil)
	descPressure  = containerDesc("charge_pressure_seconds_total", "Time in which some program of the container waited for a CPU (PSI).")
)

func seconds(us int64) float64 { return float64(us) / 1e6 }

func collectCharges(out chan<- prometheus.Metric, charges api.Charges) {
	for i := range charges.Containers {
		collectAccount(out, &charges.Containers[i])
	}
}

func collectAccount(out chan<- prometheus.Metric, c *api.Charged) {
	put := func(desc *prometheus.Desc, kind prometheus.ValueType, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(desc, kind, value, append([]string{c.Container}, labels...)...)
	}
	count := func(desc *prometheus.Desc, value float64) { put(desc, prometheus.CounterValue, value) }
	count(descOwn, seconds(c.OwnUS))
	for _, b := range c.Borrowed {
		// Credits reduce the value, so it is no counter.
		put(descBorrowed, prometheus.UntypedValue, seconds(b.US), b.Source, b.By)
	}
	put(descDebt, prometheus.GaugeValue, seconds(c.DebtUS))
	put(descCarried, prometheus.GaugeValue, seconds(c.CarriedUS))
	count(descForgiven, seconds(c.ForgivenUS))
	for of, limit := range map[string]api.ChargeLimit{"given": c.Before, "left": c.After} {
		if limit.QuotaUS > 0 && limit.PeriodUS > 0 {
			put(descQuota, prometheus.GaugeValue, float64(limit.QuotaUS)/float64(limit.PeriodUS), of)
		}
	}
	count(descHeld, seconds(c.Held.TotalUS))
	count(descHolds, float64(c.Held.Count))
	count(descTooLong, float64(c.Held.TooLong))
	count(descPeriods, float64(c.Throttled.Periods))
	count(descThrottles, float64(c.Throttled.Throttled))
	count(descThrottled, seconds(c.Throttled.US))
	if c.Pressure != nil {
		count(descPressure, seconds(c.Pressure.TotalUS))
	}
}
