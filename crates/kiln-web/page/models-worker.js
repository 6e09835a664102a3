// The worker of a model.

import { serve } from "./models-core.js";

serve(self);
