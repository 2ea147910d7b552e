package main

import (
	"encoding/json"

	"github.com/relax-rollout/relax-rollout/relax"
)

// examine reports on the model that an options document names.
func examine(doc []byte) ([]byte, error) {
	opts, err := relax.ParseDoctorOptions(doc)
	if err != nil {
		return nil, err
	}
	report, err := relax.Doctor(opts)
	if err != nil {
		return nil, err
	}
	return json.Marshal(report)
}
