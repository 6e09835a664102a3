// The worker of a model: runs models-core.js.

import { serve } from "./models-core.js";

serve(self);
